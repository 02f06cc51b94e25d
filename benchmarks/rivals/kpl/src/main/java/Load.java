import com.google.common.util.concurrent.FutureCallback;
import com.google.common.util.concurrent.Futures;
import com.google.common.util.concurrent.MoreExecutors;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import software.amazon.kinesis.producer.KinesisProducer;
import software.amazon.kinesis.producer.UserRecordResult;

/**
 * Puts records with the official producer library as fast as it accepts them. rows.py describes its input and output. A
 * record that fails ends the process.
 */
public final class Load {
    /** More of these made it slower. */
    private static final int OUTSTANDING = 20_000;

    /** In per cent of a shard's quota: the sink accepts any rate. */
    private static final String RATE_LIMIT = "1000000";

    /** Before it knows the shards, it aggregates nothing. */
    private static final long SECONDS_TO_LEARN_THE_SHARDS = 2;

    private record Row(String key, byte[] data) {}

    public static void main(String[] arguments) throws Exception {
        String port = String.valueOf(URI.create(arguments[0]).getPort());
        List<Row> rows = read(Path.of(arguments[1]));
        String stream = arguments[2];
        KinesisProducer producer = new KinesisProducer(
                Rival.configuration(port, RATE_LIMIT, System.getenv("TMPDIR"))
                        .setAggregationEnabled(arguments[3].equals("kpl")));
        put(producer, stream, rows, 1);
        TimeUnit.SECONDS.sleep(SECONDS_TO_LEARN_THE_SHARDS);
        System.out.println("ready");
        BufferedReader told = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = told.readLine(); line != null; line = told.readLine()) {
            put(producer, stream, rows, Integer.parseInt(line));
            System.out.println(line);
        }
        producer.destroy();
        System.exit(0);
    }

    private static List<Row> read(Path path) throws IOException {
        ByteBuffer content = ByteBuffer.wrap(Files.readAllBytes(path)).order(ByteOrder.LITTLE_ENDIAN);
        List<Row> rows = new ArrayList<>();
        while (content.hasRemaining()) {
            byte[] key = new byte[content.getInt()];
            byte[] data = new byte[content.getInt()];
            content.get(key).get(data);
            rows.add(new Row(new String(key, StandardCharsets.UTF_8), data));
        }
        return rows;
    }

    private static void put(KinesisProducer producer, String stream, List<Row> rows, int records)
            throws InterruptedException {
        Semaphore room = new Semaphore(OUTSTANDING);
        FutureCallback<UserRecordResult> settled = new FutureCallback<>() {
            @Override
            public void onSuccess(UserRecordResult result) {
                room.release();
            }

            @Override
            public void onFailure(Throwable failure) {
                System.err.println("failed: " + failure);
                Runtime.getRuntime().halt(1);
            }
        };
        for (int i = 0; i < records; i++) {
            Row row = rows.get(i % rows.size());
            room.acquire();
            Futures.addCallback(
                    producer.addUserRecord(stream, row.key(), ByteBuffer.wrap(row.data())),
                    settled,
                    MoreExecutors.directExecutor());
        }
        producer.flush();
        room.acquire(OUTSTANDING);
    }

    private Load() {}
}
