package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
)

func TestMain(m *testing.M) {
	if redistest.Role() == buyersRole {
		os.Exit(buyers())
	}
	os.Exit(m.Run())
}

// output is written to by several goroutines.
type output struct {
	mu sync.Mutex
	bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Buffer.Write(p)
}

// show runs the demo, which fails by itself unless each mode shows what it is to
// show, and returns what it printed.
func show(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs output
	code := run(t.Context(), args, &out, &errs)
	t.Log(out.String())
	require.Zero(t, code, errs.String())
	require.Empty(t, errs.String(), "something to complain about")
	return out.String()
}

func TestDemo_onAServerOfItsOwn(t *testing.T) {
	t.Setenv("REDIS_URL", "")
	_, err := redistest.Find()
	require.NoError(t, err)
	require.Regexp(t, `Server: (redis|valkey)-server \d`, show(t, "-quick"))
}

func TestDemo_withoutAnyServer(t *testing.T) {
	t.Setenv("REDIS_URL", "")
	t.Setenv("PATH", "")
	t.Setenv(redistest.EnvServer, "")
	require.Contains(t, show(t, "-quick", "-units=1024"), "Server: an embedded miniredis")
}

func TestDemo_onTheUsersServerLeavesOnlyWhatWasThere(t *testing.T) {
	server := redistest.Run(t)
	server.Do(t, "SET", "precious", "1")
	t.Setenv("REDIS_URL", "redis://"+server.Addr())
	require.Contains(t, show(t, "-quick", "-units=1024"), "Server: the server at REDIS_URL")
	require.Equal(t, []string{"precious"}, server.Keys(t, "*"))
}

func TestDemo_interruptedLeavesOnlyWhatWasThere(t *testing.T) {
	server := redistest.Run(t)
	t.Setenv("REDIS_URL", "redis://"+server.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan int)
	var out, errs output
	go func() { done <- run(ctx, []string{"-quick"}, &out, &errs) }()
	redistest.Eventually(t, patience, "the first order", func() bool {
		return len(server.Keys(t, "*orders")) > 0
	})
	cancel()
	require.Equal(t, 130, <-done, errs.String())
	require.Empty(t, server.Keys(t, "*"))
}

func TestDemo_aServerAskedForByNameIsNotReplaced(t *testing.T) {
	t.Setenv("REDIS_URL", "")
	t.Setenv(redistest.EnvServer, "no-such-server")
	var out, errs output
	require.Equal(t, 1, run(t.Context(), nil, &out, &errs))
	require.Contains(t, errs.String(), "no-such-server")
}

func TestParse(t *testing.T) {
	tests := []struct {
		args, units, complaint string
	}{
		{args: "", units: "10,000"},
		{args: "-quick", units: "2,000"},
		{args: "-quick -units 1024", units: "1,024"},
		{args: "-units 3", complaint: "-units: at least"},
		{args: "-processes 2", complaint: "-processes: at least"},
		{args: "-buyers 0", complaint: "-buyers: at least"},
		{args: "-units 1000", complaint: "at least 8 for each buyer, 1024"},
		{args: "fast", complaint: `what is "fast"?`},
		{args: "-fast", complaint: "not defined"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			var errs output
			s, err := parse(strings.Fields(tt.args), &errs)
			if tt.complaint != "" {
				require.Error(t, err)
				require.Contains(t, errs.String(), tt.complaint)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.units, thousands(s.units))
		})
	}
}

func TestCrew_endsAllAndTurnsAFailureIntoAnError(t *testing.T) {
	cleaned := false
	err := func() (err error) {
		c := &crew{ctx: t.Context()}
		defer c.finish(&err)
		c.Cleanup(func() { cleaned = true })
		c.Fatalf("a child %w", os.ErrProcessDone)
		return nil
	}()
	require.True(t, errors.Is(err, os.ErrProcessDone), err)
	require.True(t, cleaned)
}
