package interop_test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	report()
	return code
}

// The figures of the report.
var (
	goCalls  atomic.Int64
	overlaps atomic.Int64
	sections atomic.Int64

	figures   = map[figure][]time.Duration{}
	figuresMu sync.Mutex
)

// figure is what a latency is of.
type figure struct{ version, place, kind, direction string }

func (f figure) add(d time.Duration) {
	figuresMu.Lock()
	defer figuresMu.Unlock()
	figures[f] = append(figures[f], d)
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
func report() {
	fmt.Printf("\nserver: %s\n", serverVersion())
	for _, j := range jvms {
		fmt.Printf("Redisson %s on Java %s\n", j.version, j.java)
	}
	fmt.Printf("operations: %d of Java, %d of Go; critical sections watched: %d; overlaps: %d\n",
		javaCalls.Load(), goCalls.Load(), sections.Load(), overlaps.Load())
	if len(figures) == 0 {
		return
	}
	fmt.Printf("\nwake-up, from the start of unlock to the return of lock on the other side:\n%-10s %-16s %-8s %-12s %5s %10s %10s %10s\n",
		"Redisson", "servers", "kind", "direction", "n", "median", "p90", "max")
	order := func(a, b figure) int {
		return cmp.Or(strings.Compare(b.version, a.version), strings.Compare(b.place, a.place),
			strings.Compare(a.kind, b.kind), strings.Compare(a.direction, b.direction))
	}
	for _, f := range slices.SortedFunc(maps.Keys(figures), order) {
		d := slices.Sorted(slices.Values(figures[f]))
		fmt.Printf("%-10s %-16s %-8s %-12s %5d %10v %10v %10v\n", f.version, f.place, f.kind, f.direction, len(d),
			d[len(d)/2].Round(time.Microsecond), d[len(d)*9/10].Round(time.Microsecond), d[len(d)-1].Round(time.Microsecond))
	}
}
