"""Object stores as they can be: slow, refusing, and with answers that get lost."""
