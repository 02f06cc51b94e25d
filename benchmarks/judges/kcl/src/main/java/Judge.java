import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.MappingIterator;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import software.amazon.kinesis.retrieval.AggregatorUtil;
import software.amazon.kinesis.retrieval.KinesisClientRecord;

/**
 * Gives the records of each shard to the official consumer library, as its scheduler does, and writes its output.
 *
 * <p>Standard input, one line for each stored record: {"start", "end": the storing shard's hash range, "sequence",
 * "key", "data"}. Standard output, one line for each record that it returns: {"sequence": of the stored record, "key",
 * "hash_key": may be null, "data"}; or {"sequence", "error"} for a stored record on which the library fails. Data are
 * base64.
 */
public final class Judge {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final AggregatorUtil LIBRARY = new AggregatorUtil();

    public static void main(String[] arguments) throws IOException {
        Map<List<String>, List<KinesisClientRecord>> shards = new LinkedHashMap<>();
        try (MappingIterator<JsonNode> lines = JSON.readerFor(JsonNode.class).readValues(System.in)) {
            while (lines.hasNext()) {
                JsonNode line = lines.next();
                List<String> range = List.of(line.get("start").textValue(), line.get("end").textValue());
                shards.computeIfAbsent(range, absent -> new ArrayList<>()).add(stored(line));
            }
        }
        try (PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 20), false, StandardCharsets.UTF_8)) {
            shards.forEach((range, records) -> judge(records, range.get(0), range.get(1), out));
        }
    }

    private static KinesisClientRecord stored(JsonNode line) {
        return KinesisClientRecord.builder()
                .sequenceNumber(line.get("sequence").textValue())
                .partitionKey(line.get("key").textValue())
                .data(ByteBuffer.wrap(Base64.getDecoder().decode(line.get("data").textValue())))
                .build();
    }

    /** Reads a whole shard at once or, if the library fails on it, one record after the other. */
    private static void judge(List<KinesisClientRecord> records, String start, String end, PrintStream out) {
        List<KinesisClientRecord> handed;
        try {
            handed = LIBRARY.deaggregate(records, start, end);
        } catch (RuntimeException | LinkageError failure) { // it asks for a class that Java 11 and later do not have
            records.forEach(record -> record.data().rewind());
            if (records.size() > 1) {
                records.forEach(record -> judge(List.of(record), start, end, out));
            } else {
                ObjectNode line = JSON.createObjectNode();
                out.println(line.put("sequence", records.get(0).sequenceNumber()).put("error", failure.toString()));
            }
            return;
        }
        handed.forEach(record -> out.println(described(record)));
    }

    private static ObjectNode described(KinesisClientRecord record) {
        ByteBuffer data = record.data().duplicate();
        byte[] bytes = new byte[data.remaining()];
        data.get(bytes);
        return JSON.createObjectNode()
                .put("sequence", record.sequenceNumber())
                .put("key", record.partitionKey())
                .put("hash_key", record.explicitHashKey())
                .put("data", bytes);
    }

    private Judge() {}
}
