import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.awscore.retry.AwsRetryStrategy;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.kinesis.KinesisClient;
import software.amazon.awssdk.services.kinesis.model.KinesisException;
import software.amazon.awssdk.services.kinesis.model.PutRecordsRequestEntry;
import software.amazon.awssdk.services.kinesis.model.PutRecordsResultEntry;
import software.amazon.awssdk.services.kinesis.model.ShardIteratorType;

/**
 * Amazon's SDK, as it comes, at the endpoint in the first argument. It does what each line of standard input says, and
 * prints a line for each. Words are divided by tabs; keys, data and messages are in base64.
 *
 * put STREAM KEY DATA HASHKEY ... (HASHKEY may be "-"): for each entry "SEQUENCE:SHARD" or "CODE:MESSAGE"
 * get STREAM SHARD: for each record "KEY:DATA:SEQUENCE:MILLISECONDS"
 * After an error of the service: "error" and "STATUS:CODE:MESSAGE:REQUESTID"
 */
public final class Sdk {
    public static void main(String[] arguments) throws Exception {
        try (KinesisClient client = client(arguments[0]);
                BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] words = line.split("\t");
                List<String> found = new ArrayList<>();
                try {
                    if (words[0].equals("put")) {
                        put(client, words, found);
                    } else {
                        get(client, words[1], words[2], found);
                    }
                } catch (KinesisException error) {
                    var details = error.awsErrorDetails();
                    found = List.of("error", error.statusCode() + ":" + details.errorCode() + ":"
                            + inBase64(details.errorMessage()) + ":" + error.requestId());
                }
                System.out.println(String.join("\t", found));
            }
        }
    }

    private static KinesisClient client(String endpoint) {
        return KinesisClient.builder()
                .endpointOverride(URI.create(endpoint))
                .region(Region.US_EAST_1)
                .credentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("testing", "testing")))
                .httpClient(UrlConnectionHttpClient.create())
                .overrideConfiguration(c -> c.retryStrategy(AwsRetryStrategy.doNotRetry()))
                .build();
    }

    private static void put(KinesisClient client, String[] words, List<String> found) {
        List<PutRecordsRequestEntry> entries = new ArrayList<>();
        for (int at = 2; at < words.length; at += 3) {
            String hashKey = words[at + 2].equals("-") ? null : words[at + 2];
            entries.add(PutRecordsRequestEntry.builder()
                    .partitionKey(new String(bytes(words[at]), StandardCharsets.UTF_8))
                    .data(SdkBytes.fromByteArray(bytes(words[at + 1])))
                    .explicitHashKey(hashKey)
                    .build());
        }
        for (PutRecordsResultEntry entry : client.putRecords(r -> r.streamName(words[1]).records(entries)).records()) {
            found.add(entry.errorCode() == null
                    ? entry.sequenceNumber() + ":" + entry.shardId()
                    : entry.errorCode() + ":" + inBase64(entry.errorMessage()));
        }
    }

    private static void get(KinesisClient client, String stream, String shard, List<String> found) {
        String iterator = client.getShardIterator(
                r -> r.streamName(stream).shardId(shard).shardIteratorType(ShardIteratorType.TRIM_HORIZON))
                .shardIterator();
        client.getRecords(r -> r.shardIterator(iterator)).records().forEach(record -> found.add(
                inBase64(record.partitionKey()) + ":" + Base64.getEncoder().encodeToString(record.data().asByteArray())
                        + ":" + record.sequenceNumber() + ":" + record.approximateArrivalTimestamp().toEpochMilli()));
    }

    private static byte[] bytes(String text) {
        return Base64.getDecoder().decode(text);
    }

    private static String inBase64(String text) {
        return Base64.getEncoder().encodeToString((text == null ? "" : text).getBytes(StandardCharsets.UTF_8));
    }
}
