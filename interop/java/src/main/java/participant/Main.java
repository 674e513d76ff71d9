package participant;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.jar.Manifest;

/**
 * Takes commands on standard input and answers them on standard output.
 *
 * <p>A command is one line, {@code ID CLIENT THREAD VERB ARGUMENT...}, words escaped as in a URL.
 * CLIENT names a Redisson client that {@code open} has made: to all others it is a process of its own.
 * THREAD names a Java thread, and so an owner; commands of one thread run one after the other, and one that
 * waits holds up no other thread. Thread {@code -} is for what belongs to no thread.
 *
 * <p>An answer is {@code ID ok BEGAN ENDED VALUE} or {@code ID error BEGAN ENDED EXCEPTION TEXT}, in the order
 * in which commands end. The times are those of the wall clock in nanoseconds, which all processes of the machine
 * share: of just before the call, and of just after.
 *
 * <p>At the end of standard input the process ends at once and unlocks nothing.
 */
public final class Main {
    /** Verb is what one command does; it returns the answer's value. */
    interface Verb {
        Object run(String[] args) throws Exception;
    }

    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

    private static final Map<String, Client> clients = new ConcurrentHashMap<>();
    private static final Map<String, ExecutorService> threads = new HashMap<>();
    private static final Map<String, Future<?>> running = new ConcurrentHashMap<>();

    private Main() {
    }

    public static void main(String[] args) throws Exception {
        say("ready " + version() + " " + System.getProperty("java.version"));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            for (int i = 0; i < words.length; i++) {
                words[i] = URLDecoder.decode(words[i], StandardCharsets.UTF_8);
            }
            take(words[0], words[1], words[2], words[3], Arrays.copyOfRange(words, 4, words.length));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void take(String id, String client, String thread, String verb, String[] args) {
        ExecutorService executor = threads.computeIfAbsent(client + " " + thread, name ->
                Executors.newSingleThreadExecutor(work -> {
                    Thread t = new Thread(work, name);
                    t.setDaemon(true);
                    return t;
                }));
        if (verb.equals("interrupt")) {
            Future<?> call = running.get(client + " " + thread);
            answer(id, () -> call != null && call.cancel(true));
            return;
        }
        Future<?> call = executor.submit(() -> answer(id, () -> run(client, thread, verb, args)));
        running.put(client + " " + thread, call);
    }

    private static Object run(String client, String thread, String verb, String[] args) throws Exception {
        switch (verb) {
            case "open":
                return clients.computeIfAbsent(client, name -> new Client(args)).id();
            case "close":
                Client gone = clients.remove(client);
                if (gone != null) {
                    gone.close();
                }
                return null;
            case "storm":
                return new Storm(clients.get(client), args).run();
            case "bench":
                return Bench.run(clients.get(client), args);
            default:
                return clients.get(client).thread(thread).run(verb, args);
        }
    }

    private static void answer(String id, java.util.concurrent.Callable<Object> work) {
        long began = now();
        try {
            Object value = work.call();
            long ended = now();
            say(id + " ok " + began + " " + ended + " " + escape(String.valueOf(value)));
        } catch (Throwable e) {
            long ended = now();
            Throwable cause = e instanceof java.util.concurrent.ExecutionException ? e.getCause() : e;
            say(id + " error " + began + " " + ended + " " + cause.getClass().getSimpleName() + " "
                    + escape(String.valueOf(cause.getMessage())));
        }
    }

    /** say writes one line in one piece. */
    static synchronized void say(String line) {
        OUT.println(line);
    }

    /** now is the wall clock in nanoseconds. */
    static long now() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000_000L + now.getNano();
    }

    static String escape(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8);
    }

    private static String version() throws Exception {
        try (var manifest = Main.class.getResourceAsStream("/META-INF/MANIFEST.MF")) {
            String version = manifest == null ? null : new Manifest(manifest).getMainAttributes().getValue("Redisson-Version");
            return version == null ? "unknown" : version;
        }
    }
}
