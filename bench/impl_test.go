package bench_test

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/bench"
	"github.com/holdfast-go/holdfast/rwlock"
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
	for _, name := range []string{"limit-hash", "limit-string", "limit-batch", "limit-reader"} {
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

// The writer is Holdfast's own: all readers here keep the format that both libraries
// understand.
func TestReaders_keepWritersOut(t *testing.T) {
	for _, name := range bench.Readers.Impls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			impl, _ := bench.Find(name)
			lab := bench.NewLab(t, impl)
			ctx := within(t, time.Minute)
			writer := writerOf(t, lab, "one")
			one, other := lab.Open(t, bench.Env{}), lab.Open(t, bench.Env{})
			lockers := []bench.Locker{reader(t, one, "one"), reader(t, one, "one"), reader(t, other, "one")}
			var holds []bench.Hold
			for _, l := range lockers {
				hold, err := l.Lock(ctx)
				require.NoError(t, err)
				holds = append(holds, hold)
			}
			require.Equal(t, "4", lab.Redis(t, "HLEN", "one"), "the mode, and an owner each")
			for _, hold := range holds {
				_, _, err := writer.TryLock(ctx)
				require.ErrorIs(t, err, holdfast.ErrNotAcquired)
				require.NoError(t, hold.Unlock(ctx))
			}
			require.Equal(t, "0", lab.Redis(t, "EXISTS", "one"))

			_, lease, err := writer.TryLock(ctx)
			require.NoError(t, err)
			short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancel()
			_, err = lockers[0].Lock(short)
			require.Error(t, err, "readers are kept out, too")
			if impl.Role == bench.Limit { // it does not wait
				require.NoError(t, lease.Unlock(ctx))
				return
			}
			var wg sync.WaitGroup
			began := time.Now()
			for _, l := range lockers {
				wg.Go(func() {
					if err := bench.Pairs(ctx, l, 1); err != nil {
						t.Error(err)
					}
				})
			}
			time.Sleep(200 * time.Millisecond) // they wait
			require.NoError(t, lease.Unlock(ctx))
			wg.Wait()
			require.Less(t, time.Since(began), 10*time.Second, "woken, not run out of the writer's lease")
			require.Equal(t, "0", lab.Redis(t, "EXISTS", "one"))
		})
	}
}

// writerOf returns Holdfast's write side of a lock in lab's server.
func writerOf(t *testing.T, lab *bench.Lab, name string) *rwlock.Writer {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{lab.Addr()}, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	session, err := holdfast.New(client, holdfast.SessionOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = session.Close(ctx) // a test that failed may hold the lock
	})
	lock, err := rwlock.New(session, name, rwlock.Options{})
	require.NoError(t, err)
	return lock.Writer()
}

func TestReaders_areRenewed(t *testing.T) {
	for _, name := range []string{"holdfast", "redisson-protocol"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			impl, _ := bench.Find(name)
			lab := bench.NewLab(t, impl)
			ctx := within(t, time.Minute)
			client := lab.Open(t, bench.Env{Lease: 2 * time.Second})
			var holds []bench.Hold
			for _, lock := range []string{"one", "one", "two"} {
				hold, err := reader(t, client, lock).Lock(ctx)
				require.NoError(t, err)
				holds = append(holds, hold)
			}
			time.Sleep(2500 * time.Millisecond) // more than a lease
			require.Equal(t, "3", lab.Redis(t, "HLEN", "one"))
			require.Equal(t, "2", lab.Redis(t, "HLEN", "two"))
			require.Equal(t, "5", lab.Redis(t, "DBSIZE"), "two locks, and a key of each hold")
			for _, hold := range holds {
				require.NoError(t, hold.Unlock(ctx))
			}
		})
	}
}

// A release of Redisson's reader gives the lock the life of the longest hold that is
// left, and takes the lock away if there is none.
func TestRedissonReader_looksAtEveryHold(t *testing.T) {
	impl, _ := bench.Find("redisson-protocol")
	lab := bench.NewLab(t, impl)
	ctx := within(t, time.Minute)
	lock := reader(t, lab.Open(t, bench.Env{Lease: time.Minute}), "one")
	for _, test := range []struct {
		owner  string
		hold   int // with a key of its own
		before string
		want   bool // the lock is there afterwards
	}{
		{"long", 2, "300000", true},
		{"dead", 0, "300000", false},
	} {
		hold, err := lock.Lock(ctx)
		require.NoError(t, err)
		lab.Redis(t, "HSET", "one", test.owner, "2")
		if test.hold > 0 {
			lab.Redis(t, "SET", "{one}:"+test.owner+":rwlock_timeout:"+strconv.Itoa(test.hold), "1", "PX", "200000")
		}
		lab.Redis(t, "PEXPIRE", "one", test.before)
		require.NoError(t, hold.Unlock(ctx))
		left, err := strconv.Atoi(lab.Redis(t, "PTTL", "one"))
		require.NoError(t, err)
		if test.want {
			require.InDelta(t, 200_000, left, 20_000)
			require.Equal(t, "2", lab.Redis(t, "HLEN", "one"))
		} else {
			require.Equal(t, -2, left)
		}
		lab.Redis(t, "FLUSHALL")
		require.Error(t, hold.Unlock(ctx), "it is gone")
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

func TestWire_countsReaders(t *testing.T) {
	for name, each := range map[string]int64{"holdfast": 2, "limit-reader": 2, "redisson-protocol": 3} {
		impl, _ := bench.Find(name)
		lab := bench.NewLab(t, impl)
		ctx := context.Background()
		others, client := lab.Open(t, bench.Env{}), lab.Open(t, bench.Env{})
		for range 10 {
			hold, err := reader(t, others, "one").Lock(ctx)
			require.NoError(t, err)
			t.Cleanup(func() { _ = hold.Unlock(ctx) }) // before the client's Close, which waits for it
		}
		lock := reader(t, client, "one")
		require.NoError(t, bench.Pairs(ctx, lock, 10))
		before := int64(-1)
		for now := lab.Wire.Commands(); now != before; now = lab.Wire.Commands() {
			before = now
			time.Sleep(200 * time.Millisecond) // the last one's latch is deleted in the background
		}
		require.NoError(t, bench.Pairs(ctx, lock, 100))
		require.Eventually(t, func() bool { return lab.Wire.Commands()-before == 100*each }, 5*time.Second, time.Millisecond, name)
	}
}

// Orders of many buyers: one unit for each, and none twice.
func TestSellers_sellEachUnitOnce(t *testing.T) {
	names := slices.Concat(bench.Stock.Impls, bench.SoldOut.Impls)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			impl, _ := bench.Find(name)
			lab := bench.NewLab(t, impl)
			const units, buyers = 20, 4
			goods := goodsOf(t, lab, units)
			ctx := within(t, time.Minute)
			left := func() int64 {
				n, err := goods.Left(ctx)
				require.NoError(t, err)
				return n
			}
			require.EqualValues(t, units, left())
			require.NoError(t, goods.Buyer().Buy(ctx, "first"))
			require.EqualValues(t, units-1, left())

			var sold atomic.Int64
			var wg sync.WaitGroup
			for i := range buyers {
				buyer := goods.Buyer()
				wg.Go(func() {
					for n := 0; ; n++ {
						err := buyer.Buy(ctx, strconv.Itoa(i)+"-"+strconv.Itoa(n))
						if err != nil {
							if !errors.Is(err, bench.ErrSoldOut) {
								t.Error(err)
							}
							return
						}
						sold.Add(1)
					}
				})
			}
			wg.Wait()
			require.EqualValues(t, units-1, sold.Load())
			require.Zero(t, left())
			require.ErrorIs(t, goods.Buyer().Buy(ctx, "last"), bench.ErrSoldOut)
		})
	}
}

// What the limit sends is what Holdfast sends: the same keys, and the same order in
// them.
func TestLimitReserve_leavesWhatHoldfastLeaves(t *testing.T) {
	found := map[string][]string{}
	for _, name := range []string{"holdfast", "limit-reserve"} {
		impl, _ := bench.Find(name)
		lab := bench.NewLab(t, impl)
		require.NoError(t, goodsOf(t, lab, 5).Buyer().Buy(within(t, time.Minute), "one"))
		order := strings.Fields(lab.Redis(t, "HGET", "holdfast_stock_orders:{sale:0}", "o:one"))
		until, err := strconv.ParseInt(order[3], 10, 64)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(10*time.Minute), time.UnixMilli(until), 10*time.Second)
		found[name] = append(order[:3], lab.Redis(t, "ZCARD", "holdfast_stock_ends:{sale:0}"),
			lab.Redis(t, "HGET", "holdfast_stock_units:{sale:0}", "reserved"), lab.Redis(t, "EXISTS", "holdfast_stock_buyers:{sale:0}"))
	}
	require.Equal(t, found["holdfast"], found["limit-reserve"])
}

func TestWire_countsPurchases(t *testing.T) {
	for name, each := range map[string]int64{"holdfast": 1, "limit-reserve": 1, "redsync-goredis": 4, "redsync-rueidis-1ms": 4} {
		impl, _ := bench.Find(name)
		lab := bench.NewLab(t, impl)
		buyer := goodsOf(t, lab, 1000).Buyer()
		buy := func(from, to int) {
			for i := range to - from {
				require.NoError(t, buyer.Buy(within(t, time.Minute), strconv.Itoa(from+i)))
			}
		}
		buy(0, 10)
		before := lab.Wire.Commands()
		buy(10, 110)
		require.Equal(t, 100*each, lab.Wire.Commands()-before, name)
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
		require.Regexp(t, `^([A-Z][a-z]+)+$`, w.Name)
		require.Regexp(t, `^[a-z]+$`, w.Param)
		require.NotEmpty(t, w.Cells())
		for _, impl := range w.Impls {
			require.Contains(t, names, impl)
		}
	}
	var cells []string
	for _, c := range bench.Readers.Cells() {
		cells = append(cells, c.String())
	}
	require.Contains(t, cells, "Readers/impl=holdfast/beside=1000")
}

func TestImpls_areAllMeasured(t *testing.T) {
	for _, impl := range bench.Impls {
		require.True(t, slices.ContainsFunc(bench.Workloads, func(w bench.Workload) bool {
			return slices.Contains(w.Impls, impl.Name)
		}), impl.Name)
	}
}
