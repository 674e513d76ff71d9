package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/bench"
	"github.com/holdfast-go/holdfast/bench/report"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

// patience is how long a measurement may take beyond its plan before it is ended:
// a peer that hangs must not hang the run.
const patience = 45 * time.Second

// measure builds the benchmarks and runs the plan so many times into raw.
func measure(ctx context.Context, s settings, p plan, raw string, out io.Writer) error {
	began := time.Now()
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", s.test, ".")
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, text)
	}
	config, err := config()
	if err != nil {
		return err
	}
	f, err := os.Create(raw)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(config); err != nil {
		return err
	}
	say(out, "built in %v\n", time.Since(began).Round(time.Second))
	for n := range s.rounds {
		if _, err := fmt.Fprintf(f, "\n%s%d\n", report.RoundMark, n+1); err != nil {
			return err
		}
		round := p.round(n)
		for i, b := range round {
			if err := ctx.Err(); err != nil {
				return err
			}
			say(out, "%5.0fs  round %d of %d, %d of %d: %s\n",
				time.Since(began).Seconds(), n+1, s.rounds, i+1, len(round), describe(b))
			if _, err := f.WriteString(s.runBatch(ctx, b)); err != nil {
				return err
			}
		}
	}
	say(out, "all of it took %v\n", time.Since(began).Round(time.Second))
	return f.Close()
}

func describe(b batch) string {
	if len(b) == 1 {
		return b[0].cell.String()
	}
	return fmt.Sprintf("%d that leave the machine idle", len(b))
}

// runBatch runs the cells of a batch at one time, each in a process of its own,
// and returns their lines.
func (s settings) runBatch(ctx context.Context, b batch) string {
	texts := make([]string, len(b))
	var wg sync.WaitGroup
	for i, j := range b {
		wg.Go(func() { texts[i] = s.runJob(ctx, j) })
	}
	wg.Wait()
	return strings.Join(texts, "")
}

var skipped = regexp.MustCompile(`(?m)_test\.go:\d+: (.* is not measured: .*)$`)

// runJob runs one cell. What fails is a note in the raw text: the others go on.
func (s settings) runJob(ctx context.Context, j job) string {
	ctx, cancel := context.WithTimeout(ctx, j.window+j.around+patience)
	defer cancel()
	// Without -test.v a benchmark that is skipped does not say why.
	cmd := exec.CommandContext(ctx, s.test, "-test.v", "-test.run=^$", "-test.bench="+j.cell.Pattern(),
		"-test.benchtime="+j.window.String(), "-test.count=1", "-test.timeout=0")
	cmd.WaitDelay = time.Second
	text, err := cmd.CombinedOutput()
	var lines strings.Builder
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte("Benchmark")) && bytes.Contains(line, []byte("ns/op")) {
			lines.Write(line)
		}
	}
	if lines.Len() > 0 && err == nil {
		return lines.String()
	}
	var reason string
	switch found := skipped.FindSubmatch(text); {
	case found != nil:
		reason = string(found[1])
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		reason = j.cell.String() + " hung and was ended"
	default:
		reason = j.cell.String() + " failed: " + lastLine(text)
	}
	return report.NoteMark + reason + "\n"
}

// lastLine returns the line of a failed benchmark that says why.
func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, line := range lines {
		if strings.Contains(line, ".go:") || strings.HasPrefix(line, "panic:") {
			return strings.TrimSpace(line)
		}
	}
	return strings.TrimSpace(lines[len(lines)-1])
}

// modules are those whose versions matter to the results. rueidislock is a part of
// rueidis.
var modules = []string{
	"github.com/redis/rueidis", "github.com/redis/go-redis/v9", "github.com/go-redsync/redsync/v4",
	"github.com/bsm/redislock", "go.etcd.io/etcd/client/v3",
}

// config returns the configuration lines of a run, in Go's benchmark format.
func config() (string, error) {
	var b strings.Builder
	line := func(key, value string) { fmt.Fprintf(&b, "%s: %s\n", key, value) }
	line("goos", runtime.GOOS)
	line("goarch", runtime.GOARCH)
	line("pkg", "github.com/holdfast-go/holdfast/bench")
	line("cpu", cpuModel())
	line("cores", fmt.Sprint(runtime.NumCPU()))
	line("date", time.Now().UTC().Format("2006-01-02 15:04 MST"))
	line("commit", commit())
	server, err := redistest.Find()
	if err != nil {
		return "", err
	}
	line("server", version(server, "--version"))
	if etcd, err := exec.LookPath("etcd"); err == nil {
		line("etcd", version(etcd, "--version"))
	}
	if jar := os.Getenv(bench.EnvRedisson); jar != "" {
		line("redisson", redisson(jar))
	}
	line("go", runtime.Version())
	// A test binary does not know its modules, but this program is made of the same.
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if slices.Contains(modules, dep.Path) {
				line(dep.Path, dep.Version)
			}
		}
	}
	return b.String(), nil
}

// redisson asks the built Java program, which ends at once without input.
func redisson(jar string) string {
	text, err := exec.Command("java", "-jar", jar).Output()
	words := strings.Fields(string(text)) // ready VERSION JAVA
	if err != nil || len(words) < 3 {
		return "version unknown"
	}
	return words[1] + " on Java " + words[2]
}

func version(program, flag string) string {
	text, err := exec.Command(program, flag).Output()
	if err != nil {
		return filepath.Base(program) + ", version unknown"
	}
	first, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(first)
}

func commit() string {
	text, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}

// cpuModel returns what go test prints as cpu, on Linux.
func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	if m := regexp.MustCompile(`(?m)^model name\s*: (.+)$`).FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return "unknown"
}
