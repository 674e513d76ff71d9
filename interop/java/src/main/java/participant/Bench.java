package participant;

/** Bench runs the workloads of the benchmarks. */
final class Bench {
    private Bench() {
    }

    static Object run(Client client, String[] args) {
        throw new UnsupportedOperationException("not yet");
    }
}
