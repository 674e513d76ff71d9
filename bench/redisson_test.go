package bench_test

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/bench"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

// Redisson runs the workloads in its own process, the Java program of module interop,
// and answers with the figures: a command for each lock would measure the pipe.

// warm is how long the JVM runs a workload before it is measured: with less the JIT
// would be measured too.
const warm = 2 * time.Second

// javaProcess is that program with a client.
type javaProcess struct {
	b       *testing.B
	process *redistest.Process
	last    int
}

func startJava(b *testing.B, lab *bench.Lab) *javaProcess {
	b.Helper()
	j := &javaProcess{b: b, process: redistest.Command(b, "java", exec.Command("java", "-Xmx512m",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-jar", os.Getenv(bench.EnvRedisson)), nil)}
	j.process.Line("ready ", 30*time.Second)
	j.get(j.send("open", "address="+lab.Addr(), "pool=64"))
	return j
}

// send starts a command.
func (j *javaProcess) send(verb string, args ...string) string {
	j.b.Helper()
	j.last++
	id := fmt.Sprint(j.last)
	for i := range args {
		args[i] = url.QueryEscape(args[i])
	}
	j.process.Send(strings.Join(append([]string{id, "client", "-", verb}, args...), " "))
	return id
}

// get waits for its value.
func (j *javaProcess) get(id string) string {
	j.b.Helper()
	words := strings.Fields(j.process.Line(id+" ", time.Minute)) // ok BEGAN ENDED VALUE
	if len(words) < 3 || words[0] != "ok" {
		j.b.Fatal(words)
	}
	value, err := url.QueryUnescape(strings.Join(words[3:], ""))
	require.NoError(j.b, err)
	return value
}

// bench runs a workload and scans its figures.
func (j *javaProcess) bench(args []string, figures ...any) {
	j.b.Helper()
	text := j.get(j.send("bench", args...))
	_, err := fmt.Sscan(text, figures...)
	require.NoError(j.b, err, text)
}

func millis(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }

func redissonUncontended(b *testing.B, lab *bench.Lab, cores int) {
	b.Helper()
	j := startJava(b, lab)
	var n, elapsed, cpu, median, late int64
	j.bench([]string{"warm", "free", millis(warm)}, &n)
	lab.Pin(b, cores)
	lab.PinAsThis(b, j.process.PID())
	j.bench([]string{"warm", "free", "300"}, &n)
	b.ResetTimer()
	meter := lab.Start(b)
	j.bench([]string{"uncontended", millis(window(300 * time.Millisecond))}, &n, &elapsed, &cpu, &median, &late)
	meter.Stop()
	b.ReportMetric(float64(median), "p50-ns")
	b.ReportMetric(float64(late), "p99-ns")
	redissonCosts(b, meter, n, elapsed, cpu)
}

func redissonContended(b *testing.B, lab *bench.Lab, threads int) {
	b.Helper()
	j := startJava(b, lab)
	var n, elapsed, cpu, least, most, starved, longest int64
	all := []any{&n, &elapsed, &cpu, &least, &most, &starved, &longest}
	j.bench([]string{"contended", fmt.Sprint(threads), millis(warm)}, all...)
	b.ResetTimer()
	meter := lab.Start(b)
	j.bench([]string{"contended", fmt.Sprint(threads), millis(window(time.Second))}, all...)
	meter.Stop()
	b.ReportMetric(float64(n)/(float64(elapsed)/1e9), "acquisitions/s")
	b.ReportMetric(float64(most)/float64(max(least, 1)), "max/min")
	b.ReportMetric(100*float64(starved)/float64(threads), "starved-%")
	b.ReportMetric(float64(longest), "p99-longest-wait-ns")
	redissonCosts(b, meter, n, elapsed, cpu)
}

func redissonCosts(b *testing.B, m *bench.Meter, n, elapsed, cpu int64) {
	b.Helper()
	b.ReportMetric(float64(elapsed)/float64(n), "ns/op")
	b.ReportMetric(float64(cpu)/float64(n), "client-cpu-ns/op")
	b.ReportMetric(float64(m.Server)/float64(n), "server-cpu-ns/op")
}

func redissonHandoff(b *testing.B, lab *bench.Lab, processes int, turns string, span time.Duration) {
	b.Helper()
	_, err := bench.SharedCounter(turns)
	require.NoError(b, err)
	all := make([]*javaProcess, processes)
	ids := make([]string, processes)
	for i := range all {
		all[i] = startJava(b, lab)
		ids[i] = all[i].send("bench", "warm", fmt.Sprint("warm:", i), millis(warm))
	}
	for i, j := range all {
		j.get(ids[i])
	}
	b.ResetTimer()
	meter := lab.Start(b)
	for i, j := range all {
		ids[i] = j.send("bench", "ring", turns, millis(span), millis(hold))
	}
	var stays []turn
	for i, j := range all {
		for text := range strings.FieldsSeq(j.get(ids[i])) {
			var t turn
			_, err := fmt.Sscanf(text, "%d,%d", &t.Locked, &t.Unlock)
			require.NoError(b, err, text)
			stays = append(stays, t)
		}
	}
	meter.Stop()
	reportHandoffs(b, meter, stays)
}
