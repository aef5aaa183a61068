package org.apache.spark.sql.cec

import java.io.File
import java.lang.reflect.Modifier
import java.util.jar.JarFile

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.Using
import scala.util.control.NonFatal

import org.apache.xbean.asm9.{ClassReader, ClassVisitor, MethodVisitor, Opcodes, Type}

/** Whether all that the classes of a jar use of others is there: what the JVM would find out call by call. */
private[cec] object Linkage {
  private val Own = getClass.getPackageName.replace('.', '/') + "/"

  private final case class Member(owner: String, name: String, descriptor: String)

  /** What the jar of `home` uses and cannot have, by name: members of other classes, and methods that its own would have to implement. */
  def missing(home: Class[_]): Seq[String] = {
    val loader = home.getClassLoader
    val own = classesBeside(home)
    val used = own.flatMap(bytes => membersUsed(bytes)).distinct
    (used.filterNot(isThere(_, loader)).map(member => s"${member.owner.replace('/', '.')}.${member.name}${member.descriptor}") ++
      own.flatMap(bytes => abstractMethods(new ClassReader(bytes).getClassName.replace('/', '.'), loader))).distinct.sorted
  }

  private def classesBeside(home: Class[_]): Seq[Array[Byte]] =
    Using.resource(new JarFile(new File(home.getProtectionDomain.getCodeSource.getLocation.toURI))) { jar =>
      jar.entries.asScala.filter(entry => entry.getName.startsWith(Own) && entry.getName.endsWith(".class"))
        .map(entry => Using.resource(jar.getInputStream(entry))(_.readAllBytes())).toVector
    }

  private def membersUsed(bytes: Array[Byte]): Seq[Member] = {
    val found = mutable.LinkedHashSet.empty[Member]
    def note(owner: String, name: String, descriptor: String): Unit =
      if (!owner.startsWith(Own) && !owner.startsWith("[") && !owner.startsWith("java/")) found += Member(owner, name, descriptor)
    new ClassReader(bytes).accept(new ClassVisitor(Opcodes.ASM9) {
      override def visitMethod(access: Int, name: String, descriptor: String, signature: String, exceptions: Array[String]): MethodVisitor =
        new MethodVisitor(Opcodes.ASM9) {
          override def visitMethodInsn(opcode: Int, owner: String, name: String, descriptor: String, isInterface: Boolean): Unit =
            note(owner, name, descriptor)
          override def visitFieldInsn(opcode: Int, owner: String, name: String, descriptor: String): Unit = note(owner, name, descriptor)
        }
    }, ClassReader.SKIP_DEBUG)
    found.toSeq
  }

  private def isThere(member: Member, loader: ClassLoader): Boolean =
    try ancestors(Class.forName(member.owner.replace('/', '.'), false, loader)).exists { owner =>
        if (member.descriptor.startsWith("(")) {
          if (member.name == "<init>") owner.getDeclaredConstructors.exists(Type.getConstructorDescriptor(_) == member.descriptor)
          else owner.getDeclaredMethods.exists(each => each.getName == member.name && Type.getMethodDescriptor(each) == member.descriptor)
        } else owner.getDeclaredFields.exists(each => each.getName == member.name && Type.getDescriptor(each.getType) == member.descriptor)
      }
    catch {
      case _: ClassNotFoundException | _: LinkageError => false
    }

  private def ancestors(start: Class[_]): Iterator[Class[_]] = {
    val above = Option(start.getSuperclass).iterator ++ start.getInterfaces.iterator ++ Option.when(start.isInterface)(classOf[Object]).iterator
    Iterator(start) ++ above.flatMap(ancestors)
  }

  private def abstractMethods(name: String, loader: ClassLoader): Seq[String] =
    try {
      val own = Class.forName(name, false, loader)
      if (Modifier.isAbstract(own.getModifiers)) Nil
      else own.getMethods.toSeq.filter(method => Modifier.isAbstract(method.getModifiers))
        .map(method => s"an implementation of ${method.getDeclaringClass.getName}.${method.getName} in $name")
    } catch {
      case NonFatal(_) | _: LinkageError => Seq(s"what $name needs to be loaded")
    }
}
