package judge;

import java.nio.ByteBuffer;
import java.util.Base64;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.qpid.transport.Method;
import org.apache.qpid.transport.Struct;
import org.apache.qpid.transport.codec.BBDecoder;
import org.apache.qpid.transport.codec.BBEncoder;

/** Qpid's own reader and writer of 0-10, one behind the other. */
final class Codec {
    private static final int ROOM = 1 << 16;

    private Codec() {
    }

    /** For each {@code [kind, octets]}, of {@code control}, {@code command} or {@code struct}: the class and the octets
     *  that it is written as, or the class alone and why not. */
    static JsonNode recode(JsonNode items) {
        ArrayNode answers = Values.JSON.createArrayNode();
        for (JsonNode item : items) {
            ArrayNode answer = answers.addArray();
            try {
                recode(item.get(0).asText(), Base64.getDecoder().decode(item.get(1).asText()), answer);
            } catch (RuntimeException | AssertionError failure) {
                answer.removeAll().addNull().add(Judge.describe(failure));
            }
        }
        return answers;
    }

    private static void recode(String kind, byte[] octets, ArrayNode answer) {
        BBDecoder decoder = new BBDecoder();
        decoder.init(ByteBuffer.wrap(octets));
        BBEncoder encoder = new BBEncoder(ROOM);
        encoder.init();
        Struct read;
        if (kind.equals("struct")) {
            read = decoder.readStruct32();
            encoder.writeStruct32(read);
        } else {
            int code = decoder.readUint16();
            read = Method.create(code);
            encoder.writeUint16(code);
            if (kind.equals("command")) {
                encoder.writeUint16(decoder.readUint16());
            }
            read.read(decoder);
            read.write(encoder);
        }
        if (decoder.hasRemaining()) {
            throw new IllegalArgumentException("octets behind " + read);
        }
        ByteBuffer written = encoder.buffer();
        byte[] again = new byte[written.remaining()];
        written.get(again);
        answer.add(read.getClass().getSimpleName()).add(Base64.getEncoder().encodeToString(again));
    }
}
