package interop_test

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
)

// Shared by the tests: a Java process for each version of Redisson, one server, and
// a cluster of six processes.
var (
	jvms   []*jvm
	server *redistest.Server
)

var cluster = sync.OnceValue(func() *redistest.Cluster { return redistest.RunCluster(shared) })

// shared is the test that owns what all tests share.
var shared = &program{}

// program is a redistest.TB that is over when all tests are.
type program struct {
	mu       sync.Mutex
	cleanups []func()
}

func (p *program) Helper()                      {}
func (p *program) Name() string                 { return "interop" }
func (p *program) Logf(f string, args ...any)   { fmt.Fprintf(os.Stderr, f+"\n", args...) }
func (p *program) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }

func (p *program) TempDir() string {
	dir, err := os.MkdirTemp("", "interop-")
	if err != nil {
		panic(err)
	}
	p.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (p *program) Cleanup(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, fn)
}

func (p *program) end() {
	for _, fn := range slices.Backward(p.cleanups) {
		fn()
	}
}

func TestMain(m *testing.M) {
	if role, ok := roles[redistest.Role()]; ok {
		role()
		return
	}
	os.Exit(run(m))
}

// roles are what the test binary does as another process.
var roles = map[string]func(){}

func run(m *testing.M) int {
	jars, err := findJars()
	if err == nil {
		err = javaThere()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop: "+err.Error())
		return 1
	}
	defer shared.end()
	server = redistest.Run(shared)
	for _, jar := range jars {
		jvms = append(jvms, startJVM(shared, jar))
	}
	code := m.Run()
	report(os.Stdout)
	return code
}

// The figures of the report.
var (
	goCalls  atomic.Int64
	overlaps atomic.Int64
	sections atomic.Int64

	figuresMu sync.Mutex
	figures   = map[figure][]time.Duration{}
	notes     = map[string][]string{}
)

// figure is what a latency is of.
type figure struct{ version, place, kind, direction string }

const (
	javaToGo = "Java to Go"
	goToJava = "Go to Java"
)

func (f figure) add(d time.Duration) {
	figuresMu.Lock()
	defer figuresMu.Unlock()
	figures[f] = append(figures[f], d)
}

// prompt checks that the rounds of a figure were woken: a waiter that hears nothing
// looks after a second at the earliest.
func (f figure) prompt(t *testing.T) {
	t.Helper()
	figuresMu.Lock()
	defer figuresMu.Unlock()
	d := slices.Sorted(slices.Values(figures[f]))
	require.Less(t, d[len(d)/2], 700*time.Millisecond, "%v: the median", f)
}

// note adds a line to a part of the report.
func note(part, format string, args ...any) {
	figuresMu.Lock()
	defer figuresMu.Unlock()
	notes[part] = append(notes[part], fmt.Sprintf(format, args...))
}

func serverVersion() string {
	info := server.Do(shared, "INFO", "server")
	for _, name := range []string{"valkey_version:", "redis_version:"} {
		if _, after, ok := strings.Cut(info, name); ok {
			version, _, _ := strings.Cut(after, "\r")
			return strings.TrimSuffix(name, "_version:") + " " + version
		}
	}
	return "unknown"
}

// report prints what was run, and how long wake-ups took.
func report(out io.Writer) {
	var versions []string
	for _, j := range jvms {
		versions = append(versions, j.version)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	line("\nJava and Go on the same locks")
	line("  server\t%s", serverVersion())
	line("  Redisson\t%s, on Java %s", strings.Join(versions, " and "), jvms[0].java)
	line("  operations\t%d of Java, %d of Go", javaCalls.Load(), goCalls.Load())
	line("  overlaps\t%d in %d critical sections that were watched", overlaps.Load(), sections.Load())
	for _, part := range slices.Sorted(maps.Keys(notes)) {
		line("\n%s", part)
		for _, text := range notes[part] {
			line("  %s", text)
		}
	}
	all := map[figure][]time.Duration{}
	for f, d := range figures {
		f.kind = "all"
		all[f] = append(all[f], d...)
	}
	if testing.Verbose() {
		maps.Copy(all, figures)
	}
	if len(all) > 0 {
		line("\nwake-up, from the start of unlock on one side to the return of lock on the other: median, 9 of 10, longest")
		line("  Redisson\tservers\tlocks\t%s\t%s", javaToGo, goToJava)
	}
	rows := map[figure]bool{}
	for f := range all {
		f.direction = ""
		rows[f] = true
	}
	order := func(a, b figure) int {
		return cmp.Or(strings.Compare(b.version, a.version), strings.Compare(b.place, a.place), strings.Compare(a.kind, b.kind))
	}
	for _, f := range slices.SortedFunc(maps.Keys(rows), order) {
		line("  %s\t%s\t%s\t%s\t%s", f.version, f.place, f.kind,
			spread(all[figure{f.version, f.place, f.kind, javaToGo}]), spread(all[figure{f.version, f.place, f.kind, goToJava}]))
	}
	_ = w.Flush()
}

// spread is how latencies lie.
func spread(d []time.Duration) string {
	if len(d) == 0 {
		return "-"
	}
	slices.Sort(d)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return fmt.Sprintf("%.2f, %.2f, %.2f ms", ms(d[len(d)/2]), ms(d[len(d)*9/10]), ms(d[len(d)-1]))
}
