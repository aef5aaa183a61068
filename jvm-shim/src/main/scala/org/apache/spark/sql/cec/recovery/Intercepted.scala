package org.apache.spark.sql.cec.recovery

import java.lang.reflect.{InvocationHandler, InvocationTargetException, Method, Proxy}

import scala.reflect.ClassTag

/** Stand-ins for objects of Spark's and of connectors, which answer some calls otherwise. */
private[recovery] object Intercepted {
  /** How a method of some name is answered; the function beside it has the object itself answer. */
  type Calls = PartialFunction[(String, () => AnyRef), AnyRef]

  /**
   * Does what `inner` does, but for `calls`. It has the interface A, and those of `traits` that `inner` has: an object says what it can do
   * by its traits, and what is not known to be safe to pass on is not promised. It is equal to itself alone.
   */
  def apply[A <: AnyRef: ClassTag](inner: A, traits: Class[_]*)(calls: Calls): A = {
    val wanted = implicitly[ClassTag[A]].runtimeClass +: traits.filter(_.isInstance(inner))
    val handler: InvocationHandler = (self: AnyRef, method: Method, arguments: Array[AnyRef]) => {
      def itself(): AnyRef = try method.invoke(inner, arguments: _*) catch { case failed: InvocationTargetException => throw failed.getCause }
      (method.getName, Option(arguments).fold(0)(_.length)) match {
        case ("equals", 1) => Boolean.box(self eq arguments(0))
        case ("hashCode", 0) => Int.box(System.identityHashCode(self))
        case (name, _) => calls.applyOrElse((name, () => itself()), (_: (String, () => AnyRef)) => itself())
      }
    }
    Proxy.newProxyInstance(inner.getClass.getClassLoader, wanted.distinct.toArray, handler).asInstanceOf[A]
  }
}
