/** Prints the options with which Spark starts a JVM. */
public class ModuleOptions {
  public static void main(String[] arguments) {
    System.out.println(org.apache.spark.launcher.JavaModuleOptions.defaultModuleOptions());
  }
}
