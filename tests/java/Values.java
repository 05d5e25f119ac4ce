package judge;

import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.qpid.framing.AMQShortString;
import org.apache.qpid.framing.AMQType;
import org.apache.qpid.framing.AMQTypedValue;
import org.apache.qpid.framing.FieldTable;

/**
 * Header values as JSON: {@code [type, value]}; tables as {@code [[key, [type, value]], ...]}, in order. In 0-10 a
 * type is the name of the Java class, in 0-8 to 0-9-1 the letter of the wire type. Octets are base64. A classic
 * decimal is {@code [scale, unscaled]}: the library writes and reads the two fields of 1.25 as if it were 125.00.
 */
final class Values {
    static final ObjectMapper JSON = new ObjectMapper();

    private Values() {
    }

    static String text(JsonNode node, String name) {
        JsonNode value = node.get(name);
        return value == null || value.isNull() ? null : value.asText();
    }

    static String text(JsonNode node, String name, String otherwise) {
        String value = text(node, name);
        return value == null ? otherwise : value;
    }

    static byte[] octets(JsonNode node, String name) {
        String value = text(node, name);
        return value == null ? null : Base64.getDecoder().decode(value);
    }

    static String base64(byte[] octets) {
        return octets == null ? null : Base64.getEncoder().encodeToString(octets);
    }

    // -------------------------------------------------------------------------------------------- 0-10

    static Object toJava(JsonNode pair) {
        JsonNode value = pair.get(1);
        switch (pair.get(0).asText()) {
            case "null": return null;
            case "Boolean": return value.asBoolean();
            case "Byte": return (byte) value.asInt();
            case "Short": return (short) value.asInt();
            case "Integer": return value.asInt();
            case "Long": return value.asLong();
            case "Float": return (float) value.asDouble();
            case "Double": return value.asDouble();
            case "String": return value.asText();
            case "Character": return value.asText().charAt(0);
            case "byte[]": return Base64.getDecoder().decode(value.asText());
            case "UUID": return UUID.fromString(value.asText());
            case "Map": return toMap(value);
            case "List": {
                List<Object> list = new ArrayList<>();
                value.forEach(item -> list.add(toJava(item)));
                return list;
            }
            default: throw new IllegalArgumentException("no such type: " + pair);
        }
    }

    static Map<String, Object> toMap(JsonNode entries) {
        Map<String, Object> map = new LinkedHashMap<>();
        if (entries != null) {
            entries.forEach(entry -> map.put(entry.get(0).asText(), toJava(entry.get(1))));
        }
        return map;
    }

    static ArrayNode fromJava(Object value) {
        ArrayNode pair = JSON.createArrayNode();
        if (value == null) {
            return pair.add("null").addNull();
        } else if (value instanceof Map) {
            return pair.add("Map").add(fromMap((Map<?, ?>) value));
        } else if (value instanceof List) {
            ArrayNode items = JSON.createArrayNode();
            ((List<?>) value).forEach(item -> items.add(fromJava(item)));
            return pair.add("List").add(items);
        } else if (value instanceof byte[]) {
            return pair.add("byte[]").add(base64((byte[]) value));
        } else if (value instanceof UUID || value instanceof Character || value instanceof BigDecimal) {
            return pair.add(value.getClass().getSimpleName()).add(value.toString());
        }
        return pair.add(value.getClass().getSimpleName()).addPOJO(value);
    }

    static ArrayNode fromMap(Map<?, ?> map) {
        ArrayNode entries = JSON.createArrayNode();
        map.forEach((key, value) -> entries.addArray().add(key.toString()).add(fromJava(value)));
        return entries;
    }

    // ------------------------------------------------------------------------------------------ classic

    static FieldTable toTable(JsonNode entries) {
        FieldTable table = new FieldTable();
        for (JsonNode entry : entries) {
            AMQShortString key = AMQShortString.valueOf(entry.get(0).asText());
            JsonNode value = entry.get(1).get(1);
            switch (entry.get(1).get(0).asText()) {
                case "t": table.setBoolean(key, value.asBoolean()); break;
                case "b": table.setByte(key, (byte) value.asInt()); break;
                case "s": table.setShort(key, (short) value.asInt()); break;
                case "I": table.setInteger(key, value.asInt()); break;
                case "l": table.setLong(key, value.asLong()); break;
                case "f": table.setFloat(key, (float) value.asDouble()); break;
                case "d": table.setDouble(key, value.asDouble()); break;
                case "D": table.setDecimal(key, new BigDecimal(value.get(1).asInt()).setScale(value.get(0).asInt())); break;
                case "S": table.setString(key, value.asText()); break;
                case "T": table.setTimestamp(key, value.asLong()); break;
                case "V": table.setVoid(key); break;
                case "x": table.setBytes(key, Base64.getDecoder().decode(value.asText())); break;
                case "F": table.setFieldTable(key, toTable(value)); break;
                case "A": {
                    List<Object> list = new ArrayList<>();
                    value.forEach(item -> list.add(toJava(item)));
                    table.setFieldArray(key, list);
                    break;
                }
                default: throw new IllegalArgumentException("no such type: " + entry);
            }
        }
        return table;
    }

    static ArrayNode fromTable(FieldTable table) {
        ArrayNode entries = JSON.createArrayNode();
        Iterator<Map.Entry<AMQShortString, AMQTypedValue>> all = table.iterator();
        while (all.hasNext()) {
            Map.Entry<AMQShortString, AMQTypedValue> entry = all.next();
            entries.addArray().add(entry.getKey().toString()).add(fromTyped(entry.getValue()));
        }
        return entries;
    }

    private static ArrayNode fromTyped(AMQTypedValue typed) {
        Object value = typed.getValue();
        ArrayNode pair = JSON.createArrayNode().add(String.valueOf((char) typed.getType().identifier()));
        if (value == null) {
            return pair.addNull();
        } else if (value instanceof FieldTable) {
            return pair.add(fromTable((FieldTable) value));
        } else if (value instanceof byte[]) {
            byte[] octets = (byte[]) value;
            return pair.add(typed.getType() == AMQType.BINARY ? base64(octets) : new String(octets, StandardCharsets.UTF_8));
        } else if (value instanceof Collection) {
            ArrayNode items = JSON.createArrayNode();
            ((Collection<?>) value).forEach(item -> items.add(fromTyped(AMQTypedValue.toTypedValue(item))));
            return pair.add(items);
        } else if (value instanceof BigDecimal) {
            BigDecimal decimal = (BigDecimal) value;
            pair.addArray().add(decimal.scale()).add(decimal.intValue());
            return pair;
        }
        return pair.addPOJO(value);
    }
}
