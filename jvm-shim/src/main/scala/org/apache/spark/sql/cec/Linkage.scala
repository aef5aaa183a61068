package org.apache.spark.sql.cec

import java.io.File
import java.util.jar.JarFile

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.Using

import org.apache.xbean.asm9.{ClassReader, ClassVisitor, FieldVisitor, MethodVisitor, Opcodes}

/**
 * Checks that Spark has all members that the classes of our jar use. Without this check, the JVM would fail at the
 * first call of a missing member. The check reads class files and loads none, because some of Spark's classes cannot
 * be loaded without optional libraries.
 */
private[cec] object Linkage {
  private val OwnPackage = getClass.getPackageName.replace('.', '/') + "/"

  private final case class Member(name: String, descriptor: String)
  private final case class Use(owner: String, member: Member)

  /** The members that one class file declares and uses. */
  private final class ClassFile(bytes: Array[Byte]) extends ClassVisitor(Opcodes.ASM9) {
    private val reader = new ClassReader(bytes)
    val (declared, abstracts) = (mutable.Set.empty[Member], mutable.Set.empty[Member])
    val uses = mutable.LinkedHashSet.empty[Use]
    reader.accept(this, ClassReader.SKIP_DEBUG | ClassReader.SKIP_FRAMES)

    def name: String = reader.getClassName
    def isAbstract: Boolean = (reader.getAccess & Opcodes.ACC_ABSTRACT) != 0
    def supertypes: Seq[String] = Option(reader.getSuperName).toSeq ++ reader.getInterfaces

    override def visitField(access: Int, name: String, descriptor: String, signature: String, value: Object): FieldVisitor = {
      declared += Member(name, descriptor)
      null
    }

    override def visitMethod(access: Int, name: String, descriptor: String, signature: String, exceptions: Array[String]): MethodVisitor = {
      (if ((access & Opcodes.ACC_ABSTRACT) != 0) abstracts else declared) += Member(name, descriptor)
      new MethodVisitor(Opcodes.ASM9) {
        override def visitMethodInsn(opcode: Int, owner: String, name: String, descriptor: String, isInterface: Boolean): Unit =
          uses += Use(owner, Member(name, descriptor))
        override def visitFieldInsn(opcode: Int, owner: String, name: String, descriptor: String): Unit =
          uses += Use(owner, Member(name, descriptor))
      }
    }
  }

  /** The jar that contains a class. */
  def jarOf(home: Class[_]): File = new File(home.getProtectionDomain.getCodeSource.getLocation.toURI)

  /**
   * The members that our classes in `jar` use and cannot find: members of other classes, and abstract methods that no
   * class implements.
   */
  def missing(jar: File, loader: ClassLoader): Seq[String] = {
    val own = classesIn(jar).map(shape => shape.name -> shape).toMap
    val known = mutable.Map.empty[String, Option[ClassFile]]
    def findClass(name: String): Option[ClassFile] = own.get(name).orElse(known.getOrElseUpdate(name, readClass(name, loader)))
    def collectSupertypes(name: String): Iterator[ClassFile] =
      findClass(name).iterator.flatMap(shape => Iterator(shape) ++ shape.supertypes.iterator.flatMap(collectSupertypes))

    val uses = own.values.flatMap(_.uses).filterNot(use => use.owner.startsWith(OwnPackage) || use.owner.startsWith("[") || use.owner.startsWith("java/"))
    val missingMembers = uses.filterNot(use => collectSupertypes(use.owner).exists(shape => shape.declared(use.member) || shape.abstracts(use.member)))
      .map(use => s"${use.owner.replace('/', '.')}.${use.member.name}${use.member.descriptor}")
    val missingImplementations = own.values.filterNot(_.isAbstract).flatMap { shape =>
      val all = collectSupertypes(shape.name).toSeq
      (all.flatMap(_.abstracts).toSet -- all.flatMap(_.declared))
        .map(member => s"an implementation of ${member.name}${member.descriptor} in ${shape.name.replace('/', '.')}")
    }
    (missingMembers ++ missingImplementations).toSeq.distinct.sorted
  }

  private def classesIn(file: File): Seq[ClassFile] =
    Using.resource(new JarFile(file)) { jar =>
      jar.entries.asScala.filter(entry => entry.getName.startsWith(OwnPackage) && entry.getName.endsWith(".class"))
        .map(entry => new ClassFile(Using.resource(jar.getInputStream(entry))(_.readAllBytes()))).toVector
    }

  private def readClass(name: String, loader: ClassLoader): Option[ClassFile] =
    Option(loader.getResourceAsStream(s"$name.class")).map(stream => new ClassFile(Using.resource(stream)(_.readAllBytes())))
}
