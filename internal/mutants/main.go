// Command mutants spoils the library in many small ways, one at a time, and runs
// the tests: each must fail some test. A mutant that survives means that nothing
// guards what it breaks.
//
// The spoilt file is laid over the real one for the length of one go test, so
// nothing in the tree is changed. Run it from the root, or as make mutants; with
// arguments it runs the mutants whose names contain one of them.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A mutant is one way to spoil one file.
type mutant struct {
	name     string
	file     string
	old, new string   // old must be there exactly once
	test     []string // packages whose tests have to catch it
	run      string   // -run, to save time
}

// tooLong ends a run that hangs: that is caught, too.
const tooLong = time.Minute

// blind are tests that only compare files, and would see any change.
const blind = "TestFiles_eachHasItsVariable"

func main() {
	survived := 0
	count := 0
	for _, m := range slices.Concat(mutants, rwMutants) {
		if !wanted(m.name) {
			continue
		}
		count++
		began := time.Now()
		by, err := m.caughtBy()
		if err != nil {
			fmt.Printf("%-55s SURVIVED: %v\n", m.name, err)
			survived++
			continue
		}
		fmt.Printf("%-55s caught by %s (%.0f s)\n", m.name, by, time.Since(began).Seconds())
	}
	fmt.Printf("%d mutants, %d survived\n", count, survived)
	if survived > 0 || count == 0 {
		os.Exit(1)
	}
}

func wanted(name string) bool {
	for _, arg := range os.Args[1:] {
		if strings.Contains(name, arg) {
			return true
		}
	}
	return len(os.Args) == 1
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// caughtBy names the test that fails with m.
func (m *mutant) caughtBy() (string, error) {
	text, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return "", fmt.Errorf("%s has %d times %q: mend the mutant", m.file, n, m.old)
	}
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	spoilt := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(spoilt, []byte(strings.Replace(string(text), m.old, m.new, 1)), 0o600); err != nil {
		return "", err
	}
	real, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{real: spoilt}})
	if err != nil {
		return "", err
	}
	lay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(lay, overlay, 0o600); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), tooLong)
	defer cancel()
	// The time-out is the test binary's own: to kill go test would leave it running.
	args := append([]string{"test", "-count=1", "-failfast", "-timeout", (tooLong - 10*time.Second).String(), "-overlay", lay, "-run", m.run, "-skip", blind}, m.test...)
	out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput()
	switch hit := failed.FindSubmatch(out); {
	case strings.Contains(string(out), "[build failed]") || strings.Contains(string(out), "[setup failed]"):
		return "", fmt.Errorf("it does not build: %s", out)
	case hit != nil:
		// The deepest name says most.
		all := failed.FindAllSubmatch(out, -1)
		return string(all[len(all)-1][1]), nil
	case ctx.Err() != nil || strings.Contains(string(out), "panic: test timed out"):
		return "a run that hangs", nil
	case strings.Contains(string(out), "panic: "):
		return "a panic", nil
	case err != nil:
		return "", fmt.Errorf("no test failed, but go test did: %s", out)
	default:
		return "", fmt.Errorf("all tests pass")
	}
}
