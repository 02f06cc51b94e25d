import com.google.common.util.concurrent.ListenableFuture;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.kinesis.producer.KinesisProducer;
import software.amazon.kinesis.producer.KinesisProducerConfiguration;
import software.amazon.kinesis.producer.UserRecordResult;

/**
 * Puts rows with the official producer library. Arguments: PORT STREAM ROWS ROW_BYTES RATE_LIMIT TEMP_DIRECTORY.
 *
 * <p>Prints "ready" when it has sent one record and has had time to learn the shards. The line "go" starts the rows: key
 * "key-N", data N in 12 digits and filled with points. The line "end SECONDS" asks which rows the library reported as
 * stored. The answer is one line with the numbers of all others, after a wait of up to this long for their futures.
 */
public final class Rival {
    /** Before it knows the shards, it aggregates nothing. */
    private static final long SECONDS_TO_LEARN_THE_SHARDS = 2;

    public static void main(String[] arguments) throws Exception {
        String stream = arguments[1];
        int rows = Integer.parseInt(arguments[2]);
        int rowBytes = Integer.parseInt(arguments[3]);
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        KinesisProducer producer = new KinesisProducer(configuration(arguments[0], arguments[4], arguments[5]));
        producer.addUserRecord(stream, "first", ByteBuffer.wrap("first".getBytes(StandardCharsets.UTF_8))).get();
        TimeUnit.SECONDS.sleep(SECONDS_TO_LEARN_THE_SHARDS);
        System.out.println("ready");
        expect(asked, "go");
        List<ListenableFuture<UserRecordResult>> futures = new ArrayList<>(rows);
        for (int row = 0; row < rows; row++) {
            futures.add(producer.addUserRecord(stream, "key-" + row, data(row, rowBytes)));
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(Long.parseLong(expect(asked, "end")));
        StringBuilder others = new StringBuilder();
        for (int row = 0; row < rows; row++) {
            if (!isStored(futures.get(row), deadline - System.nanoTime())) {
                others.append(row).append(' ');
            }
        }
        System.out.println(others);
        producer.destroy();
        System.exit(0);
    }

    static KinesisProducerConfiguration configuration(String port, String rateLimit, String temporary) {
        return new KinesisProducerConfiguration()
                .setRegion("us-east-1")
                .setKinesisEndpoint("127.0.0.1")
                .setKinesisPort(Long.parseLong(port))
                .setVerifyCertificate(false)
                .setCredentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("bench", "bench")))
                .setMetricsLevel("none")
                .setThreadingModel(KinesisProducerConfiguration.ThreadingModel.POOLED)
                .setThreadPoolSize(64)
                .setRecordTtl(600_000)
                .setEnableOldestFutureTracker(false)
                .setRateLimit(Long.parseLong(rateLimit))
                .setTempDirectory(temporary);
    }

    private static ByteBuffer data(int row, int rowBytes) {
        byte[] data = new byte[rowBytes];
        Arrays.fill(data, (byte) '.');
        byte[] number = String.format("%012d", row).getBytes(StandardCharsets.US_ASCII);
        System.arraycopy(number, 0, data, 0, number.length);
        return ByteBuffer.wrap(data);
    }

    private static boolean isStored(ListenableFuture<UserRecordResult> future, long nanoseconds) throws InterruptedException {
        try {
            return future.get(Math.max(0, nanoseconds), TimeUnit.NANOSECONDS).isSuccessful();
        } catch (ExecutionException | TimeoutException e) {
            return false;
        }
    }

    /** Returns the rest of the next line, which begins with a word. */
    private static String expect(BufferedReader asked, String word) throws IOException {
        String line = asked.readLine();
        if (line == null || !line.startsWith(word)) {
            throw new IOException("expected \"" + word + "\", was told " + line);
        }
        return line.substring(word.length()).trim();
    }

    private Rival() {}
}
