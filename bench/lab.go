package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/redistest"
)

// A Lab is where one measurement takes place: a server of its own and the count
// of what is sent to it.
type Lab struct {
	Impl   Impl
	Wire   *Wire
	server server
}

// server is what a Lab needs of a server.
type server interface {
	Addr() string
	PID() int
	// cpu returns the CPU time that the server has used.
	cpu() (time.Duration, error)
}

// NewLab starts a server for impl, for the time of the benchmark or test. It
// skips if impl needs a program that is not there.
func NewLab(tb testing.TB, impl Impl) *Lab {
	tb.Helper()
	lab := &Lab{Impl: impl, Wire: &Wire{}}
	if impl.Java && os.Getenv(EnvRedisson) == "" {
		tb.Skipf("%s is not measured: %s names no built Java program (see interop/README.md)", impl.Name, EnvRedisson)
	}
	if impl.Server == "" {
		lab.server = redisServer{redistest.Run(tb)}
		return lab
	}
	if _, err := exec.LookPath(impl.Server); err != nil {
		tb.Skipf("%s is not measured: no %s on the PATH", impl.Name, impl.Server)
	}
	lab.server = startEtcd(tb)
	return lab
}

// Open opens the implementation, for the time of the benchmark or test.
func (l *Lab) Open(tb testing.TB, e Env) Client {
	tb.Helper()
	e.Addr, e.Wire = l.server.Addr(), l.Wire
	c, err := l.Impl.Open(e)
	if err != nil {
		tb.Fatalf("%s: %v", l.Impl.Name, err)
	}
	tb.Cleanup(c.Close)
	return c
}

// A Meter tells what a span of time has cost.
type Meter struct {
	lab      *Lab
	tb       testing.TB
	began    time.Time
	server   time.Duration
	client   time.Duration
	commands int64

	// Results, valid after Stop.
	Elapsed, Server, Client time.Duration
	Commands                int64
}

// Start begins a measurement.
func (l *Lab) Start(tb testing.TB) *Meter {
	tb.Helper()
	m := &Meter{lab: l, tb: tb}
	m.server = l.serverCPU(tb)
	m.commands = l.Wire.Commands()
	m.client = processCPU()
	m.began = time.Now()
	return m
}

// Stop ends the measurement. What the measuring itself costs is left out, as far
// as it is this process's.
func (m *Meter) Stop() {
	m.Elapsed = time.Since(m.began)
	m.Client = processCPU() - m.client
	m.Commands = m.lab.Wire.Commands() - m.commands
	m.Server = m.lab.serverCPU(m.tb) - m.server
}

func (l *Lab) serverCPU(tb testing.TB) time.Duration {
	tb.Helper()
	cpu, err := l.server.cpu()
	if err != nil {
		tb.Fatalf("CPU time of the server: %v", err)
	}
	return cpu
}

// redisServer is Redis or Valkey.
type redisServer struct{ *redistest.Server }

func (s redisServer) cpu() (time.Duration, error) {
	info, err := s.TryDo("INFO", "cpu")
	if err != nil {
		return 0, err
	}
	var sum float64
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, fmt.Errorf("INFO cpu: %w", err)
			}
			sum += seconds
		}
	}
	return time.Duration(sum * float64(time.Second)), nil
}

// Pairs takes and gives back a lock so many times.
func Pairs(ctx context.Context, l Locker, times int) error {
	for range times {
		hold, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		if err := hold.Unlock(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Redis asks a Redis or Valkey server, past the client that is measured.
func (l *Lab) Redis(tb testing.TB, command ...string) string {
	tb.Helper()
	return l.server.(redisServer).Do(tb, command...)
}

// Addr is where the server is.
func (l *Lab) Addr() string { return l.server.Addr() }
