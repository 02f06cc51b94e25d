import com.google.common.util.concurrent.FutureCallback;
import com.google.common.util.concurrent.Futures;
import com.google.common.util.concurrent.MoreExecutors;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.kinesis.producer.KinesisProducer;
import software.amazon.kinesis.producer.KinesisProducerConfiguration;
import software.amazon.kinesis.producer.UserRecordResult;

/**
 * Writes micro-batches with the official producer library, as its connectors do: one library in a JVM, every row added
 * at once, and a wait for the results at the checkpoint. A row that fails is counted, and the job goes on.
 *
 * <p>All settings are the defaults, except the endpoint, the credentials and the library's own metrics.
 */
public final class Sink {
    /** Before it knows the shards, it aggregates nothing. */
    private static final long SECONDS_TO_LEARN_THE_SHARDS = 2;

    private final AtomicLong accepted = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();
    private final KinesisProducer producer;
    private final String stream;

    public Sink(long port, String stream, String temporary) throws Exception {
        this.stream = stream;
        producer = new KinesisProducer(new KinesisProducerConfiguration()
                .setRegion("us-east-1")
                .setKinesisEndpoint("127.0.0.1")
                .setKinesisPort(port)
                .setVerifyCertificate(false)
                .setCredentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("bench", "bench")))
                .setMetricsLevel("none")
                .setTempDirectory(temporary));
        producer.addUserRecord(stream, "first", bytes("first")).get();
        TimeUnit.SECONDS.sleep(SECONDS_TO_LEARN_THE_SHARDS);
    }

    /** Writes rows "KEY DATA", and returns when each has a result. */
    public void write(Iterator<String> rows) throws InterruptedException {
        Semaphore results = new Semaphore(0);
        int written = 0;
        FutureCallback<UserRecordResult> settled = new FutureCallback<>() {
            @Override
            public void onSuccess(UserRecordResult result) {
                results.release();
            }

            @Override
            public void onFailure(Throwable failure) {
                failed.incrementAndGet();
                results.release();
            }
        };
        while (rows.hasNext()) {
            String row = rows.next();
            int space = row.indexOf(' ');
            written++;
            Futures.addCallback(
                    producer.addUserRecord(stream, row.substring(0, space), bytes(row.substring(space + 1))),
                    settled,
                    MoreExecutors.directExecutor());
            accepted.incrementAndGet();
        }
        results.acquire(written);
    }

    /** Returns a JSON array: the records accepted, outstanding and failed. */
    public String numbers() {
        return "[" + accepted.get() + ", " + producer.getOutstandingRecordsCount() + ", " + failed.get() + "]";
    }

    private static ByteBuffer bytes(String text) {
        return ByteBuffer.wrap(text.getBytes(StandardCharsets.UTF_8));
    }
}
