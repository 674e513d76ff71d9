package participant;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;

/**
 * Storm takes and gives back locks at random, in a few threads, until the observer says stop.
 *
 * <p>Arguments: the observer's address, a seed, the number of threads, a lease in milliseconds, and {@code KIND:NAME}
 * for each lock; kind {@code rw} is a read-write lock. Each thread has a connection to the observer, tells it of each
 * critical section, and waits for its word before it leaves one.
 */
final class Storm {
    private final Client client;
    private final String host;
    private final int port;
    private final long seed;
    private final int threads;
    private final long lease;
    private final List<String[]> locks = new ArrayList<>();
    private final AtomicLong longest = new AtomicLong();
    private volatile boolean stopped;

    Storm(Client client, String[] args) {
        this.client = client;
        String[] address = args[0].split(":");
        host = address[0];
        port = Integer.parseInt(address[1]);
        seed = Long.parseLong(args[1]);
        threads = Integer.parseInt(args[2]);
        lease = Long.parseLong(args[3]);
        for (int i = 4; i < args.length; i++) {
            locks.add(args[i].split(":", 2));
        }
    }

    /** run returns the longest wait in milliseconds. */
    Object run() throws Exception {
        List<Thread> all = new ArrayList<>();
        List<Throwable> errors = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Random random = new Random(seed * 1000 + i);
            Thread t = new Thread(() -> {
                try (Socket socket = new Socket(host, port)) {
                    socket.setTcpNoDelay(true);
                    one(random, new Observer(socket));
                } catch (Throwable e) {
                    stopped = true;
                    synchronized (errors) {
                        errors.add(e);
                    }
                }
            });
            t.start();
            all.add(t);
        }
        for (Thread t : all) {
            t.join();
        }
        if (!errors.isEmpty()) {
            throw new IllegalStateException(errors.get(0).toString(), errors.get(0));
        }
        return longest.get();
    }

    private void one(Random random, Observer observer) throws Exception {
        while (!stopped) {
            String[] lock = locks.get(random.nextInt(locks.size()));
            String kind = lock[0];
            if (kind.equals("rw")) {
                kind = random.nextInt(3) == 0 ? "write" : "read";
            }
            RLock l = client.lock(kind, lock[1]);
            long began = System.nanoTime();
            String token = take(l, kind, random);
            longest.accumulateAndGet((System.nanoTime() - began) / 1_000_000, Math::max);
            observer.calls++;
            if (token == null) {
                continue;
            }
            observer.tell("enter " + lock[1] + " " + (kind.equals("read") ? "shared" : "alone") + " " + token);
            boolean nested = random.nextInt(4) == 0;
            if (nested) {
                l.lock();
                observer.calls++;
            }
            nap(random, 3);
            if (nested) {
                l.unlock();
            }
            if (kind.equals("write") && random.nextInt(4) == 0) {
                RLock reader = client.lock("read", lock[1]);
                reader.lock();
                observer.exit(lock[1]);
                observer.tell("enter " + lock[1] + " shared 0");
                l.unlock();
                l = reader;
                nap(random, 2);
            }
            stopped |= observer.exit(lock[1]).equals("stop");
            l.unlock();
            nap(random, 3);
        }
    }

    /** take returns a token, 0 where there are none, or null if the lock was not taken. */
    private String take(RLock l, String kind, Random random) throws InterruptedException {
        boolean taken = true;
        switch (random.nextInt(5)) {
            case 0:
                taken = l.tryLock();
                break;
            case 1:
                taken = l.tryLock(random.nextInt(50), TimeUnit.MILLISECONDS);
                break;
            case 2:
                l.lock(lease, TimeUnit.MILLISECONDS);
                break;
            default:
                if (kind.equals("fenced")) {
                    return String.valueOf(((RFencedLock) l).lockAndGetToken());
                }
                l.lock();
        }
        if (!taken) {
            return null;
        }
        return kind.equals("fenced") ? String.valueOf(((RFencedLock) l).getToken()) : "0";
    }

    private static void nap(Random random, int most) throws InterruptedException {
        Thread.sleep(random.nextInt(most + 1));
    }

    /** Observer is a connection to who watches over the critical sections. */
    static final class Observer {
        private final BufferedReader in;
        private final BufferedWriter out;
        private int calls;

        Observer(Socket socket) throws IOException {
            in = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
            out = new BufferedWriter(new OutputStreamWriter(socket.getOutputStream(), StandardCharsets.UTF_8));
        }

        void tell(String line) throws IOException {
            out.write(line + "\n");
            out.flush();
        }

        /** exit returns the observer's word. */
        String exit(String name) throws IOException {
            tell("exit " + name + " java " + calls);
            calls = 0;
            String answer = in.readLine();
            if (answer == null) {
                throw new IOException("the observer is gone");
            }
            return answer;
        }
    }
}
