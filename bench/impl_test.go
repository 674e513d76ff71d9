package bench_test

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/bench"
)

// A benchmark of a lock that excludes nobody is worth nothing.
func TestImpls_exclude(t *testing.T) {
	for _, impl := range bench.Impls {
		if impl.Role == bench.Limit && impl.Name != "limit-handoff" {
			continue // they do not wait; what they do is tested below
		}
		if impl.Java {
			continue // module interop tests it, and its workload counts under the lock
		}
		t.Run(impl.Name, func(t *testing.T) {
			t.Parallel()
			lab := bench.NewLab(t, impl)
			client := lab.Open(t, bench.Env{})
			ctx := within(t, time.Minute)
			const turns = 5
			counter := 0 // guarded by the lock alone: the race detector looks on
			var wg sync.WaitGroup
			for range 2 {
				lock := client.Locker("one")
				wg.Go(func() {
					for range turns {
						hold, err := lock.Lock(ctx)
						if err != nil {
							t.Error(err)
							return
						}
						counter++
						if err := hold.Unlock(ctx); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			require.Equal(t, 2*turns, counter)
			require.Positive(t, lab.Wire.Commands())
		})
	}
}

func TestBareLimits_refuseWhatIsTaken(t *testing.T) {
	for _, name := range []string{"limit-hash", "limit-string", "limit-batch"} {
		impl, ok := bench.Find(name)
		require.True(t, ok)
		lab := bench.NewLab(t, impl)
		ctx := within(t, time.Minute)
		theirs := lab.Open(t, bench.Env{}).Locker("one")
		hold, err := theirs.Lock(ctx)
		require.NoError(t, err)
		if name == "limit-string" { // the others have one owner, for whom it is his own
			_, err = lab.Open(t, bench.Env{}).Locker("one").Lock(ctx)
			require.Error(t, err)
		}
		require.NoError(t, hold.Unlock(ctx))
		require.Error(t, hold.Unlock(ctx), "%s: a lock that is gone is not released", name)
	}
}

func TestGrant_goesRound(t *testing.T) {
	impl, _ := bench.Find("limit-grant")
	lab := bench.NewLab(t, impl)
	ctx := within(t, time.Minute)
	second := lab.Open(t, bench.Env{Index: 1, Processes: 2}).Locker("")
	first := lab.Open(t, bench.Env{Index: 0, Processes: 2}).Locker("")
	for range 3 {
		for _, l := range []bench.Locker{first, second} {
			hold, err := l.Lock(ctx)
			require.NoError(t, err)
			require.NoError(t, hold.Unlock(ctx))
		}
	}
}

func TestWire_countsWhatAClientSends(t *testing.T) {
	for _, name := range []string{"limit-hash", "limit-string", "redislock", "redsync-goredis", "redsync-rueidis", "rueidislock-1key"} {
		impl, _ := bench.Find(name)
		lab := bench.NewLab(t, impl)
		lock := lab.Open(t, bench.Env{}).Locker("one")
		ctx := context.Background()
		require.NoError(t, bench.Pairs(ctx, lock, 10))
		before := lab.Wire.Commands()
		require.NoError(t, bench.Pairs(ctx, lock, 100))
		require.EqualValues(t, 200, lab.Wire.Commands()-before, name)
	}
}

func TestNames_areWhatBenchstatReads(t *testing.T) {
	var names []string
	wellFormed := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	for _, impl := range bench.Impls {
		require.Regexp(t, wellFormed, impl.Name)
		require.NotContains(t, names, impl.Name)
		require.Equal(t, impl.Role == bench.Ours, strings.HasPrefix(impl.Name, "holdfast"))
		require.Equal(t, impl.Role == bench.Limit, strings.HasPrefix(impl.Name, "limit-"))
		require.NotEmpty(t, impl.About)
		names = append(names, impl.Name)
	}
	for _, w := range bench.Workloads {
		require.Regexp(t, `^[A-Z][a-z]+$`, w.Name)
		require.Regexp(t, `^[a-z]+$`, w.Param)
		require.NotEmpty(t, w.Cells())
		for _, impl := range w.Impls {
			require.Contains(t, names, impl)
		}
	}
}

func TestImpls_areAllMeasured(t *testing.T) {
	for _, impl := range bench.Impls {
		require.True(t, slices.ContainsFunc(bench.Workloads, func(w bench.Workload) bool {
			return slices.Contains(w.Impls, impl.Name)
		}), impl.Name)
	}
}
