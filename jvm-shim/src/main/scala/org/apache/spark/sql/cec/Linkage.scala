package org.apache.spark.sql.cec

import java.io.File
import java.util.jar.JarFile

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.Using

import org.apache.xbean.asm9.{ClassReader, ClassVisitor, FieldVisitor, MethodVisitor, Opcodes}

/**
 * Whether all that the classes of a jar use of others is there: what the JVM would find out call by call. Classes are read as files
 * and not loaded: Spark has some that cannot be, for want of what is optional.
 */
private[cec] object Linkage {
  private val Own = getClass.getPackageName.replace('.', '/') + "/"

  private final case class Member(name: String, descriptor: String)
  private final case class Use(owner: String, member: Member)

  /** What one class file says. */
  private final class Shape(bytes: Array[Byte]) extends ClassVisitor(Opcodes.ASM9) {
    private val reader = new ClassReader(bytes)
    val (there, abstracts) = (mutable.Set.empty[Member], mutable.Set.empty[Member])
    val uses = mutable.LinkedHashSet.empty[Use]
    reader.accept(this, ClassReader.SKIP_DEBUG | ClassReader.SKIP_FRAMES)

    def name: String = reader.getClassName
    def isAbstract: Boolean = (reader.getAccess & Opcodes.ACC_ABSTRACT) != 0
    def above: Seq[String] = Option(reader.getSuperName).toSeq ++ reader.getInterfaces

    override def visitField(access: Int, name: String, descriptor: String, signature: String, value: Object): FieldVisitor = {
      there += Member(name, descriptor)
      null
    }

    override def visitMethod(access: Int, name: String, descriptor: String, signature: String, exceptions: Array[String]): MethodVisitor = {
      (if ((access & Opcodes.ACC_ABSTRACT) != 0) abstracts else there) += Member(name, descriptor)
      new MethodVisitor(Opcodes.ASM9) {
        override def visitMethodInsn(opcode: Int, owner: String, name: String, descriptor: String, isInterface: Boolean): Unit =
          uses += Use(owner, Member(name, descriptor))
        override def visitFieldInsn(opcode: Int, owner: String, name: String, descriptor: String): Unit =
          uses += Use(owner, Member(name, descriptor))
      }
    }
  }

  /** The jar that a class is from. */
  def jarOf(home: Class[_]): File = new File(home.getProtectionDomain.getCodeSource.getLocation.toURI)

  /** What our classes in `jar` use and cannot have, by name: members of other classes, and methods that they would have to implement. */
  def missing(jar: File, loader: ClassLoader): Seq[String] = {
    val own = classesIn(jar).map(shape => shape.name -> shape).toMap
    val known = mutable.Map.empty[String, Option[Shape]]
    def shapeOf(name: String): Option[Shape] = own.get(name).orElse(known.getOrElseUpdate(name, read(name, loader)))
    def family(name: String): Iterator[Shape] =
      shapeOf(name).iterator.flatMap(shape => Iterator(shape) ++ shape.above.iterator.flatMap(family))

    val uses = own.values.flatMap(_.uses).filterNot(use => use.owner.startsWith(Own) || use.owner.startsWith("[") || use.owner.startsWith("java/"))
    val lost = uses.filterNot(use => family(use.owner).exists(shape => shape.there(use.member) || shape.abstracts(use.member)))
      .map(use => s"${use.owner.replace('/', '.')}.${use.member.name}${use.member.descriptor}")
    val undone = own.values.filterNot(_.isAbstract).flatMap { shape =>
      val all = family(shape.name).toSeq
      (all.flatMap(_.abstracts).toSet -- all.flatMap(_.there))
        .map(member => s"an implementation of ${member.name}${member.descriptor} in ${shape.name.replace('/', '.')}")
    }
    (lost ++ undone).toSeq.distinct.sorted
  }

  private def classesIn(file: File): Seq[Shape] =
    Using.resource(new JarFile(file)) { jar =>
      jar.entries.asScala.filter(entry => entry.getName.startsWith(Own) && entry.getName.endsWith(".class"))
        .map(entry => new Shape(Using.resource(jar.getInputStream(entry))(_.readAllBytes()))).toVector
    }

  private def read(name: String, loader: ClassLoader): Option[Shape] =
    Option(loader.getResourceAsStream(s"$name.class")).map(stream => new Shape(Using.resource(stream)(_.readAllBytes())))
}
