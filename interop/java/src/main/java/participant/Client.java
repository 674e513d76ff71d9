package participant;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.BaseConfig;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;

/** Client is one Redisson client, with the settings of {@code open}. */
final class Client {
    private final RedissonClient redisson;
    private final Map<String, Owner> owners = new ConcurrentHashMap<>();

    /**
     * Settings: {@code address=host:port,...}, {@code cluster=true}, {@code sharded=AUTO|ON|OFF}, {@code watchdog=ms},
     * {@code prefix=text} for a name mapper that puts text before names, {@code pool=n} connections.
     */
    Client(String[] settings) {
        Map<String, String> s = new HashMap<>();
        for (String setting : settings) {
            String[] parts = setting.split("=", 2);
            s.put(parts[0], parts[1]);
        }
        String[] addresses = Arrays.stream(s.get("address").split(",")).map(a -> "redis://" + a).toArray(String[]::new);
        int pool = Integer.parseInt(s.getOrDefault("pool", "8"));
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.setThreads(4);
        config.setNettyThreads(2);
        if (s.containsKey("watchdog")) {
            config.setLockWatchdogTimeout(Long.parseLong(s.get("watchdog")));
        }
        BaseConfig<?> server;
        if (Boolean.parseBoolean(s.get("cluster"))) {
            ClusterServersConfig cluster = config.useClusterServers();
            cluster.addNodeAddress(addresses);
            cluster.setScanInterval(500);
            cluster.setMasterConnectionMinimumIdleSize(1).setMasterConnectionPoolSize(pool);
            cluster.setSlaveConnectionMinimumIdleSize(1).setSlaveConnectionPoolSize(pool);
            cluster.setSubscriptionConnectionMinimumIdleSize(1);
            if (s.containsKey("sharded")) {
                sharded(cluster, s.get("sharded"));
            }
            server = cluster;
        } else {
            SingleServerConfig single = config.useSingleServer();
            single.setAddress(addresses[0]);
            single.setConnectionMinimumIdleSize(1).setConnectionPoolSize(pool);
            single.setSubscriptionConnectionMinimumIdleSize(1);
            server = single;
        }
        if (s.containsKey("prefix")) {
            prefix(server, s.get("prefix"));
        }
        redisson = Redisson.create(config);
    }

    /** sharded sets a setting that came with 3.29; older versions decide by themselves. */
    private static void sharded(ClusterServersConfig cluster, String mode) {
        for (Method m : ClusterServersConfig.class.getMethods()) {
            if (m.getName().equals("setShardedSubscriptionMode")) {
                for (Object constant : m.getParameterTypes()[0].getEnumConstants()) {
                    if (constant.toString().equals(mode)) {
                        call(m, cluster, constant);
                        return;
                    }
                }
            }
        }
        throw new IllegalArgumentException("this version has no shardedSubscriptionMode " + mode);
    }

    /** prefix sets a name mapper, whose interface has moved from one package to another. */
    private static void prefix(BaseConfig<?> server, String prefix) {
        for (Method m : BaseConfig.class.getMethods()) {
            if (m.getName().equals("setNameMapper")) {
                Class<?> mapper = m.getParameterTypes()[0];
                call(m, server, Proxy.newProxyInstance(mapper.getClassLoader(), new Class<?>[] {mapper}, (p, method, args) -> {
                    switch (method.getName()) {
                        case "map":
                            return prefix + args[0];
                        case "unmap":
                            return String.valueOf(args[0]).substring(prefix.length());
                        default:
                            return method.invoke(prefix, args);
                    }
                }));
                return;
            }
        }
        throw new IllegalArgumentException("this version has no name mapper");
    }

    private static void call(Method m, Object target, Object argument) {
        try {
            m.invoke(target, argument);
        } catch (IllegalAccessException | InvocationTargetException e) {
            throw new IllegalStateException(e);
        }
    }

    String id() {
        return redisson.getId();
    }

    /** close shuts down without unlocking anything, as Redisson does. */
    void close() {
        redisson.shutdown(0, 2, TimeUnit.SECONDS);
    }

    Owner thread(String name) {
        return owners.computeIfAbsent(name, n -> new Owner());
    }

    /** lock returns a new handle. */
    RLock lock(String kind, String name) {
        switch (kind) {
            case "lock":
                return redisson.getLock(name);
            case "fenced":
                return redisson.getFencedLock(name);
            case "read":
                return redisson.getReadWriteLock(name).readLock();
            case "write":
                return redisson.getReadWriteLock(name).writeLock();
            case "spin":
                return redisson.getSpinLock(name);
            case "fair":
                return redisson.getFairLock(name);
            default:
                throw new IllegalArgumentException("no kind " + kind);
        }
    }

    /** Owner is one thread, with the handles that it uses. */
    final class Owner {
        private final Map<String, RLock> handles = new HashMap<>();

        /** run runs a command of the form {@code VERB KIND NAME ARGUMENT...} on the thread that it is for. */
        Object run(String verb, String[] args) throws Exception {
            String name = args[1];
            RLock lock = handles.computeIfAbsent(args[0] + " " + name, k -> lock(args[0], name));
            switch (verb) {
                case "lock": // [lease]
                    if (args.length > 2) {
                        lock.lock(Long.parseLong(args[2]), TimeUnit.MILLISECONDS);
                    } else {
                        lock.lock();
                    }
                    return null;
                case "lockInterruptibly":
                    lock.lockInterruptibly();
                    return null;
                case "lockAndGetToken":
                    return ((RFencedLock) lock).lockAndGetToken();
                case "try": // [wait [lease]]
                    switch (args.length) {
                        case 2:
                            return lock.tryLock();
                        case 3:
                            return lock.tryLock(Long.parseLong(args[2]), TimeUnit.MILLISECONDS);
                        default:
                            return lock.tryLock(Long.parseLong(args[2]), Long.parseLong(args[3]), TimeUnit.MILLISECONDS);
                    }
                case "unlock":
                    lock.unlock();
                    return null;
                case "forceUnlock":
                    return lock.forceUnlock();
                case "isLocked":
                    return lock.isLocked();
                case "isHeld":
                    return lock.isHeldByCurrentThread();
                case "holds":
                    return lock.getHoldCount();
                case "ttl":
                    return lock.remainTimeToLive();
                case "token":
                    return ((RFencedLock) lock).getToken();
                case "hash": // what the lock's key has in it, whoever wrote it
                    return new TreeMap<>(redisson.<String, String>getMap(name, StringCodec.INSTANCE).readAllMap());
                default:
                    throw new IllegalArgumentException("no verb " + verb);
            }
        }
    }
}
