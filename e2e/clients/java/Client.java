import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureMetadata;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The Java client of the end-to-end tests; see ../README.md for what it prints. Run from source: java -cp 'lib/*' Client.java … */
public class Client {
    public static void main(String[] args) throws Exception {
        if (args[0].equals("produce")) {
            produce(args[1], args[2], Integer.parseInt(args[3]), Integer.parseInt(args[4]), Integer.parseInt(args[5]));
        } else if (args[0].equals("features")) {
            features(args[1], Short.parseShort(args[2]));
        } else {
            consume(args[1], args[2], args[3], Integer.parseInt(args[4]), Integer.parseInt(args[5]));
        }
    }

    static void produce(String bootstrap, String topic, int first, int count, int rate) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("key.serializer", StringSerializer.class.getName());
        p.put("value.serializer", StringSerializer.class.getName());
        p.put("linger.ms", "5");
        p.put("metadata.max.age.ms", "5000");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(p)) {
            long start = System.nanoTime();
            for (int i = 0; i < count; i++) {
                if (rate > 0) {
                    long wait = start + i * 1_000_000_000L / rate - System.nanoTime();
                    if (wait > 0) Thread.sleep(wait / 1_000_000, (int) (wait % 1_000_000));
                }
                int value = first + i;
                producer.send(new ProducerRecord<>(topic, Integer.toString(value), String.format("%-100d", value)), (done, error) -> {
                    if (error != null) System.out.printf("err %d %s%n", value, error);
                    else System.out.printf("ack %d %d %d%n", value, done.partition(), done.offset());
                });
            }
            producer.flush();
        }
    }

    static void features(String bootstrap, short level) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            FeatureMetadata features = admin.describeFeatures().featureMetadata().get();
            features.supportedFeatures().forEach((name, range) ->
                System.out.printf("supported %s %d %d%n", name, range.minVersion(), range.maxVersion()));
            features.finalizedFeatures().forEach((name, range) ->
                System.out.printf("finalized %s %d%n", name, range.maxVersionLevel()));
            for (String name : features.supportedFeatures().keySet()) {
                FeatureUpdate update = new FeatureUpdate(level, FeatureUpdate.UpgradeType.UPGRADE);
                try {
                    admin.updateFeatures(Map.of(name, update), new UpdateFeaturesOptions()).all().get();
                    System.out.printf("updated %s %d%n", name, level);
                } catch (ExecutionException error) {
                    System.out.printf("refused %s %s%n", name, error.getCause());
                }
            }
        }
    }

    static void consume(String bootstrap, String topic, String group, int count, int seconds) {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("group.id", group);
        p.put("auto.offset.reset", "earliest");
        p.put("session.timeout.ms", "10000");
        p.put("auto.commit.interval.ms", "500");
        p.put("key.deserializer", StringDeserializer.class.getName());
        p.put("value.deserializer", StringDeserializer.class.getName());
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(p)) {
            consumer.subscribe(List.of(topic));
            Set<String> seen = new HashSet<>();
            long last = System.nanoTime();
            while (seen.size() < count && System.nanoTime() - last < seconds * 1_000_000_000L) {
                for (ConsumerRecord<String, String> r : consumer.poll(Duration.ofSeconds(1))) {
                    String value = r.value().stripTrailing();
                    System.out.printf("got %s %d %d%n", value, r.partition(), r.offset());
                    if (seen.add(value)) last = System.nanoTime();
                }
            }
        }
    }
}
