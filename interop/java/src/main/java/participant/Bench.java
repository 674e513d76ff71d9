package participant;

import com.sun.management.OperatingSystemMXBean;
import java.io.RandomAccessFile;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;

/** Bench runs the workloads of the benchmarks in this process. Its answers are numbers, times in nanoseconds. */
final class Bench {
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private Bench() {
    }

    static Object run(Client client, String[] args) throws Exception {
        switch (args[0]) {
            case "warm": // NAME MILLISECONDS
                return pairs(client.lock("lock", args[1]), Long.parseLong(args[2]) * 1_000_000, new long[0]);
            case "uncontended": // MILLISECONDS
                return uncontended(client.lock("lock", "free"), Long.parseLong(args[1]) * 1_000_000);
            case "contended": // THREADS MILLISECONDS
                return contended(client, Integer.parseInt(args[1]), Long.parseLong(args[2]));
            case "ring": // FILE WINDOW HOLD, in milliseconds
                return ring(client.lock("lock", "ring"), args[1], Long.parseLong(args[2]) * 1_000_000, Long.parseLong(args[3]));
            default:
                throw new IllegalArgumentException("no workload " + args[0]);
        }
    }

    /** pairs takes and gives back a free lock for a time, notes how long each pair took, and returns their number. */
    private static int pairs(RLock lock, long span, long[] took) {
        int n = 0;
        for (long began = System.nanoTime(), at = began; at - began < span; n++) {
            lock.lock();
            lock.unlock();
            long now = System.nanoTime();
            if (n < took.length) {
                took[n] = now - at;
            }
            at = now;
        }
        return n;
    }

    /** uncontended returns the number of pairs, the time, the CPU time, the median and the 99th percentile. */
    private static String uncontended(RLock lock, long span) {
        long[] took = new long[1_000_000];
        long cpu = SYSTEM.getProcessCpuTime();
        long began = System.nanoTime();
        int n = pairs(lock, span, took);
        long elapsed = System.nanoTime() - began;
        cpu = SYSTEM.getProcessCpuTime() - cpu;
        took = Arrays.copyOf(took, Math.min(n, took.length));
        Arrays.sort(took);
        return n + " " + elapsed + " " + cpu + " " + quantile(took, 0.5) + " " + quantile(took, 0.99);
    }

    private static long quantile(long[] sorted, double q) {
        return sorted[(int) (q * (sorted.length - 1) + 0.5)];
    }

    /** Contender is one thread that wants the lock, and what it got. */
    private static final class Contender extends Thread {
        private final RLock lock;
        private final CountDownLatch start;
        private final long[] counter; // guarded by the lock alone
        private final long milliseconds;
        private long turns;
        private long longest;
        private Throwable failure;

        Contender(RLock lock, CountDownLatch start, long[] counter, long milliseconds) {
            super(null, null, "contender", 256 * 1024);
            this.lock = lock;
            this.start = start;
            this.counter = counter;
            this.milliseconds = milliseconds;
        }

        @Override
        public void run() {
            try {
                start.await();
                long end = System.nanoTime() + milliseconds * 1_000_000;
                for (long began = System.nanoTime(); began < end; began = System.nanoTime()) {
                    // Not lockInterruptibly: an interrupted one can leave the lock taken and renewed.
                    boolean taken = lock.tryLock((end - began) / 1_000_000, -1, TimeUnit.MILLISECONDS);
                    longest = Math.max(longest, System.nanoTime() - began);
                    if (taken) {
                        counter[0]++;
                        turns++;
                        lock.unlock();
                    }
                }
            } catch (Throwable e) {
                failure = e;
            }
        }
    }

    /**
     * contended returns the number of turns, the time, the CPU time, the least and the most turns of a thread, how many
     * had none, and the 99th percentile of their longest waits.
     */
    private static String contended(Client client, int threads, long milliseconds) throws Exception {
        long[] counter = new long[1];
        CountDownLatch start = new CountDownLatch(1);
        List<Contender> all = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Contender c = new Contender(client.lock("lock", "wanted"), start, counter, milliseconds);
            c.start();
            all.add(c);
        }
        long cpu = SYSTEM.getProcessCpuTime();
        long began = System.nanoTime();
        start.countDown();
        for (Contender c : all) {
            c.join();
        }
        long elapsed = System.nanoTime() - began;
        cpu = SYSTEM.getProcessCpuTime() - cpu;
        long total = 0;
        long least = Long.MAX_VALUE;
        long most = 0;
        int starved = 0;
        long[] longest = new long[threads];
        for (int i = 0; i < threads; i++) {
            Contender c = all.get(i);
            if (c.failure != null) {
                throw new IllegalStateException(c.failure.toString(), c.failure);
            }
            total += c.turns;
            least = Math.min(least, c.turns);
            most = Math.max(most, c.turns);
            starved += c.turns == 0 ? 1 : 0;
            longest[i] = c.longest;
        }
        if (counter[0] != total) {
            throw new IllegalStateException("two had the lock at once: " + total + " turns and a counter of " + counter[0]);
        }
        Arrays.sort(longest);
        return total + " " + elapsed + " " + cpu + " " + least + " " + most + " " + starved + " " + quantile(longest, 0.99);
    }

    /** ring returns when this process had the lock: LOCKED,UNLOCK by the wall clock, for each turn. */
    private static String ring(RLock lock, String file, long span, long hold) throws Exception {
        VarHandle longs = MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.nativeOrder());
        ByteBuffer turns;
        try (RandomAccessFile f = new RandomAccessFile(file, "rw")) {
            turns = f.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, 8);
        }
        StringBuilder text = new StringBuilder();
        long began = System.nanoTime();
        while (System.nanoTime() - began < span) {
            if (!lock.tryLock(Math.max(1, (span - (System.nanoTime() - began)) / 1_000_000), -1, TimeUnit.MILLISECONDS)) {
                break;
            }
            long locked = Main.now();
            long mine = (long) longs.getAndAdd(turns, 0, 1L) + 1;
            Thread.sleep(hold);
            long unlock = Main.now();
            lock.unlock();
            text.append(text.length() == 0 ? "" : " ").append(locked).append(',').append(unlock);
            while ((long) longs.getVolatile(turns, 0) == mine && System.nanoTime() - began < span) {
                Thread.sleep(1);
            }
        }
        return text.toString();
    }
}
