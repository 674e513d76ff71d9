package report

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/bench"
)

func sample(t *testing.T) *Run {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "raw.txt"))
	require.NoError(t, err)
	defer f.Close()
	run, err := Parse(f)
	require.NoError(t, err)
	return run
}

func TestParse_knowsConfigRoundsNotesAndUnits(t *testing.T) {
	run := sample(t)
	require.Equal(t, 3, run.Rounds)
	require.Contains(t, run.Config, ConfigLine{"server", "Redis server v=7.0.15"})
	require.Equal(t, []string{"etcd is not measured: no etcd on the PATH"}, run.Notes)
	// Nanoseconds stay nanoseconds, which benchfmt would turn into seconds.
	require.Equal(t, stat{30_000, 20_000, 40_000}, run.stat("Uncontended", "holdfast", 1, "p50-ns"))
	require.Equal(t, stat{36_000, 35_000, 37_000}, run.stat("Uncontended", "holdfast", 1, "ns/op"))
}

func TestParse_refusesATextWithoutRounds(t *testing.T) {
	_, err := Parse(strings.NewReader("goos: linux\n"))
	require.Error(t, err)
}

func TestParse_refusesAStrangeBenchmark(t *testing.T) {
	_, err := Parse(strings.NewReader(RoundMark + "1\nBenchmarkFoo-2 1 5 ns/op\n"))
	require.ErrorContains(t, err, "Foo")
}

func TestRatio_isMadeWithinARound(t *testing.T) {
	// 20/10, 30/30 and 40/20: not the ratio of the medians, which is 1.5.
	require.Equal(t, stat{2, 1, 2}, sample(t).ratio("Uncontended", "holdfast", "limit-hash", 1, "p50-ns"))
}

func TestRatio_leavesOutRoundsThatMissOne(t *testing.T) {
	run := sample(t)
	require.Equal(t, stat{0.75, 0.75, 0.75}, run.ratio("Uncontended", "redislock", "holdfast", 1, "p50-ns"))
	require.False(t, run.ratio("Uncontended", "etcd", "holdfast", 1, "p50-ns").known())
}

func TestRatio_ofNothingAndNothingIsOne(t *testing.T) {
	require.Equal(t, stat{1, 1, 1}, sample(t).ratio("Waiters", "rueidislock", "holdfast", 1000, "cmds/s"))
}

func TestGrowth_isMadeWithinARound(t *testing.T) {
	// 36/30 and 60/60: not the ratio of the medians, which is 48/45.
	require.Equal(t, stat{1.1, 1, 1.2}, sample(t).growth("Readers", "holdfast", 1000, 10, "server-cpu-ns/op"))
	require.False(t, sample(t).growth("Readers", "redisson-protocol", 1000, 10, "server-cpu-ns/op").known())
}

func TestSummary_hasALineForEachWorkload(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, sample(t).Summary(&out))
	require.Equal(t, strings.Join([]string{
		"workload\tholdfast\tbest-peer\tpeer-name\tratio-to-peer\tlimit\tratio-to-limit",
		"uncontended/cores=1 (p50-ns)\t30000\t27500\tredsync-rueidis\t0.9\t20000\t2",
		"distinct/goroutines=16 (pairs/s)\t100000\t50000\tredislock\t2\t125000\t0.8",
		"readers/beside=10 (p50-ns)\t50000\t-\t-\t-\t-\t-",
		"readers/beside=1000 (p50-ns)\t55000\t550000\tredisson-protocol\t10\t50000\t1.1",
		"stock/goroutines=128 (purchases/s)\t90000\t10000\tredsync-goredis\t9\t45000\t2",
		"soldout/goroutines=128 (cmds/op)\t0.02\t-\t-\t-\t1\t0.02",
		"waiters/waiters=1000 (cmds/s)\t0\t0\trueidislock\t1\t-\t-",
		"waiters/waiters=1000 (client-cpu-%)\t0.1\t0.2\trueidislock\t2\t-\t-",
		"waiters/waiters=1000 (B/waiter)\t3000\t4000\trueidislock\t1.33\t-\t-",
		"",
	}, "\n"), out.String())
}

func TestMarkdown_namesWherePeersAreBetterAndTargetsMissed(t *testing.T) {
	page := sample(t).Markdown(map[string]string{"Uncontended": "benchmarks/uncontended.svg"})
	for _, want := range []string{
		"A free lock, cores=1, p50: redsync-rueidis has 27.5 µs (18 µs–36 µs), Holdfast 30 µs (20 µs–40 µs).",
		"| **holdfast** | 30 µs (20 µs–40 µs) | 1x |",
		"| limit-hash | 20 µs (10 µs–30 µs) | 0.5x (0.5x–1x) |",
		"| p50 on one core, over limit-hash: ≤ 1.12 | 2 | **no** |",
		"| allocations: ≤ 12 | 8 | yes |",
		"| the same with fencing: ≤ 1.25 | - | not measured |",
		"| p50 beside 1,000 readers, over redisson-protocol's: ≤ 0.5 | 0.1 | yes |",
		"| server CPU beside 1,000 readers, over that beside 10: ≤ 1.5 | 1.1 | yes |",
		"| commands per pair, the most: ≤ 2 | 2 | yes |",
		"| purchases/s at 128 goroutines, over limit-reserve: ≥ 2 | 2 | yes |",
		"| commands for each refusal at 128 goroutines: ≤ 0.2 | 0.02 | yes |",
		"Not measured: etcd is not measured: no etcd on the PATH",
		"![A free lock: p50](benchmarks/uncontended.svg)",
		"| server | Redis server v=7.0.15 |",
	} {
		require.Contains(t, page, want)
	}
	require.NotContains(t, page, "Many free locks, goroutines=16, pairs/s: ")
}

func TestCharts_areDrawnOfWhatWasMeasured(t *testing.T) {
	dir := t.TempDir()
	names, err := sample(t).Charts(dir)
	require.NoError(t, err)
	require.Contains(t, names, "Uncontended")
	require.NotContains(t, names, "Held")
	svg, err := os.ReadFile(filepath.Join(dir, names["Uncontended"]))
	require.NoError(t, err)
	require.Contains(t, string(svg), "redsync-rueidis")
}

func TestPrint_showsEveryMeasuredImplementation(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, sample(t).Print(&out))
	for _, name := range []string{"holdfast", "limit-hash", "redislock", "redsync-rueidis", "rueidislock"} {
		require.Contains(t, out.String(), "\n  "+name+" ")
	}
	require.Contains(t, out.String(), "etcd is not measured: no etcd on the PATH")
}

func TestSections_areThoseOfTheWorkloads(t *testing.T) {
	require.Len(t, sections, len(bench.Workloads))
	for i, w := range bench.Workloads {
		require.Equal(t, w.Name, sections[i].workload.Name)
		require.NotEmpty(t, sections[i].main)
	}
}

func TestFormat(t *testing.T) {
	for want, got := range map[string]string{
		"-": number(math.NaN()), "0": number(0), "0.0123": number(0.0123), "12.3": number(12.345), "1,234,568": number(1234567.8), "-1,234": number(-1234),
		"999 ns": nanos(999), "1.5 µs": nanos(1500), "2 ms": nanos(2e6), "1.2 s": nanos(1.2e9), "5 %": percent(5), "10 B": size(10),
	} {
		require.Equal(t, want, got)
	}
}
