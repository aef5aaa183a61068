import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSNNTopology;
import org.apache.hadoop.hdfs.protocol.HdfsConstants.SafeModeAction;

/**
 * An HDFS on loopback: {@code java MiniHdfs.java DIRECTORY NAMENODES}. Two name nodes are a pair of HA, the first one active.
 *
 * <p>It prints a line with the ports of the name nodes. Then it obeys a line of standard input at a time, and prints a line
 * after each. It ends with its standard input.
 */
public final class MiniHdfs {
    public static void main(String[] given) throws Exception {
        int nameNodes = Integer.parseInt(given[1]);
        HdfsConfiguration conf = new HdfsConfiguration();
        conf.set("dfs.namenode.fs-limits.min-block-size", "1024");
        conf.set("dfs.replication", "1");
        MiniDFSCluster.Builder builder = new MiniDFSCluster.Builder(conf, new File(given[0])).numDataNodes(1);
        if (nameNodes > 1) {
            builder.nnTopology(MiniDFSNNTopology.simpleHATopology(nameNodes));
        }
        MiniDFSCluster cluster = builder.build();
        if (nameNodes > 1) {
            cluster.transitionToActive(0);
        }
        cluster.waitActive();
        String ports = IntStream.range(0, nameNodes).mapToObj(each -> String.valueOf(cluster.getNameNodePort(each)))
            .collect(Collectors.joining(" "));
        System.out.println("ready " + ports);
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            String[] words = order.split(" ", 2);
            System.out.println(answer(cluster, words[0], words.length > 1 ? words[1] : ""));
        }
        cluster.shutdown(true);
    }

    private static String answer(MiniDFSCluster cluster, String verb, String argument) throws Exception {
        switch (verb) {
            case "safe-mode":
                cluster.getFileSystem().setSafeMode(argument.equals("on") ? SafeModeAction.SAFEMODE_ENTER : SafeModeAction.SAFEMODE_LEAVE);
                return "done";
            case "activate":
                int chosen = Integer.parseInt(argument);
                cluster.transitionToStandby(1 - chosen);
                cluster.transitionToActive(chosen);
                return "done";
            case "standby":
                cluster.transitionToStandby(Integer.parseInt(argument));
                return "done";
            case "restart":
                cluster.restartNameNode(0, true);
                return "done";
            case "quota":
                String[] words = argument.split(" ");
                cluster.getFileSystem().setQuota(new Path(words[1]), Long.parseLong(words[0]), Long.MAX_VALUE);
                return "done";
            default:
                return "unknown " + verb;
        }
    }
}
