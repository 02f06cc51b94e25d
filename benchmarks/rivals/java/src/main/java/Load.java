import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.http.Protocol;
import software.amazon.awssdk.http.nio.netty.NettyNioAsyncHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.awssdk.services.kinesis.model.PutRecordsRequestEntry;
import software.amazon.awssdk.services.kinesis.model.PutRecordsResponse;

/**
 * Sends requests of 500 records with the AWS SDK for Java 2, 16 in flight, in CBOR, its default. rows.py describes its
 * input and output. A failure ends the process.
 */
public final class Load {
    private static final int REQUEST_RECORDS = 500;
    private static final int REQUEST_BYTES = 4_000_000;
    private static final int IN_FLIGHT = 16;

    private record Row(String key, byte[] data) {}

    public static void main(String[] arguments) throws Exception {
        List<Row> rows = read(Path.of(arguments[1]));
        TrustManager[] authority = authority(Path.of(System.getenv("AWS_CA_BUNDLE")));
        try (KinesisAsyncClient client = KinesisAsyncClient.builder()
                .endpointOverride(URI.create(arguments[0]))
                .region(Region.US_EAST_1)
                .httpClientBuilder(NettyNioAsyncHttpClient.builder()
                        .protocol(Protocol.HTTP1_1) // for this service its default is HTTP/2, which the sink has not
                        .maxConcurrency(IN_FLIGHT)
                        .tlsTrustManagersProvider(() -> authority))
                .build()) {
            System.out.println("ready");
            BufferedReader told = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = told.readLine(); line != null; line = told.readLine()) {
                put(client, arguments[2], rows, Integer.parseInt(line));
                System.out.println(line);
            }
        }
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

    private static TrustManager[] authority(Path certificate) throws IOException, GeneralSecurityException {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream pem = Files.newInputStream(certificate)) {
            store.setCertificateEntry("sink", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(store);
        return factory.getTrustManagers();
    }

    private static void put(KinesisAsyncClient client, String stream, List<Row> rows, int records)
            throws InterruptedException {
        Semaphore room = new Semaphore(IN_FLIGHT);
        List<PutRecordsRequestEntry> request = new ArrayList<>(REQUEST_RECORDS);
        int size = 0;
        for (int i = 0; i < records; i++) {
            Row row = rows.get(i % rows.size());
            int rowBytes = row.key().length() + row.data().length;
            if (request.size() == REQUEST_RECORDS || size + rowBytes > REQUEST_BYTES) {
                send(client, stream, request, room);
                request = new ArrayList<>(REQUEST_RECORDS);
                size = 0;
            }
            request.add(PutRecordsRequestEntry.builder()
                    .data(SdkBytes.fromByteArrayUnsafe(row.data()))
                    .partitionKey(row.key())
                    .build());
            size += rowBytes;
        }
        if (!request.isEmpty()) {
            send(client, stream, request, room);
        }
        room.acquire(IN_FLIGHT);
    }

    private static void send(
            KinesisAsyncClient client, String stream, List<PutRecordsRequestEntry> request, Semaphore room)
            throws InterruptedException {
        room.acquire();
        client.putRecords(call -> call.streamName(stream).records(request)).whenComplete((answer, failure) -> {
            if (failure != null || !isStored(answer, request.size())) {
                System.err.println("failed: " + (failure != null ? failure : answer));
                Runtime.getRuntime().halt(1);
            }
            room.release();
        });
    }

    private static boolean isStored(PutRecordsResponse answer, int records) {
        return answer.failedRecordCount() == 0 && answer.records().size() == records;
    }

    private Load() {}
}
