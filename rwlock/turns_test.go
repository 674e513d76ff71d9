package rwlock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/rwlock"
)

func writersOf(t testing.TB) string { return "holdfast_rwlock_writers:{" + key(t) + "}" }
func readersOf(t testing.TB) string { return "holdfast_rwlock_readers:{" + key(t) + "}" }
func turnOf(t testing.TB) string    { return "holdfast_rwlock_turn:{" + key(t) + "}" }

// announced waits until a writer has said that it waits.
func announced(t testing.TB) {
	t.Helper()
	redistest.Eventually(t, 30*time.Second, "a writer's word", func() bool { return server.Do(t, "ZCARD", writersOf(t)) == "1" })
}

func TestPreference_newReadersStandBackAndNestedOnesDoNot(t *testing.T) {
	a, b := newLock(t, session(t, redisAddr), key(t)), newLock(t, session(t, redisAddr), key(t))
	ctx, r := lock(t, a.Reader())
	wrote := make(chan error, 1)
	go func() {
		wrote <- b.Writer().Do(within(t, 20*time.Second), func(context.Context) error { return nil })
	}()
	announced(t)
	taken(t, a.Reader())
	taken(t, b.Reader())
	_, nested, err := a.Reader().Lock(ctx)
	require.NoError(t, err)
	unlock(t, r)
	require.Empty(t, wrote)
	unlock(t, nested)
	require.NoError(t, <-wrote)
	free(t, a.Reader())
	require.Empty(t, server.Keys(t, "*"+key(t)+"*"))
}

func TestPreference_aWriterThatGivesUpTellsReaders(t *testing.T) {
	a, b := newLock(t, session(t, redisAddr), key(t)), newLock(t, session(t, redisAddr), key(t))
	_, r := lock(t, a.Reader())
	ctx, cancel := context.WithCancel(context.Background())
	gave := make(chan error, 1)
	go func() {
		_, _, err := b.Writer().Lock(ctx)
		gave <- err
	}()
	announced(t)
	read := make(chan error, 1)
	go func() {
		read <- a.Reader().Do(within(t, 20*time.Second), func(context.Context) error { return nil })
	}()
	redistest.Eventually(t, 10*time.Second, "a reader waits", func() bool { return server.Do(t, "EXISTS", readersOf(t)) == "1" })
	listening(t, server, 2) // so both have their answers
	cancel()
	began := time.Now()
	require.ErrorIs(t, <-gave, holdfast.ErrNotAcquired)
	require.NoError(t, <-read)
	require.Less(t, time.Since(began), 1800*time.Millisecond, "it did not wait for the word to end") // which has two seconds at least
	unlock(t, r)
	require.Empty(t, server.Keys(t, "*"+key(t)+"*"))
}

func TestPreference_aTryIsNoWord(t *testing.T) {
	a := newLock(t, session(t, redisAddr), key(t))
	_, r := lock(t, a.Reader())
	taken(t, a.Writer())
	require.Equal(t, "0", server.Do(t, "EXISTS", writersOf(t)))
	free(t, a.Reader())
	unlock(t, r)
}

func TestPreference_readersFirst(t *testing.T) {
	hf := session(t, redisAddr)
	l, err := rwlock.New(hf, key(t), rwlock.Options{ReadersFirst: true})
	require.NoError(t, err)
	_, r := lock(t, l.Reader())
	wrote := make(chan error, 1)
	go func() {
		wrote <- l.Writer().Do(within(t, 20*time.Second), func(context.Context) error { return nil })
	}()
	subscribed(t, server, 1)
	for range 10 {
		free(t, l.Reader())
	}
	require.Equal(t, "0", server.Do(t, "EXISTS", writersOf(t)))
	require.Empty(t, wrote)
	unlock(t, r)
	require.NoError(t, <-wrote)
}

// The word of a waiting writer is given again and again, once a second for a process.
func TestPreference_aWordIsKeptAliveByOneCommandASecond(t *testing.T) {
	srv := redistest.Run(t)
	_, r := lock(t, newLock(t, session(t, srv.Addr()), key(t)).Reader())
	hf := session(t, srv.Addr())
	l := newLock(t, hf, key(t))
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { _ = l.Writer().Do(context.Background(), func(context.Context) error { return nil }) })
	}
	waiting(t, hf, 50)
	before, began := srv.Calls(t), time.Now()
	time.Sleep(4 * time.Second)
	calls := srv.Calls(t).Since(before)
	t.Logf("50 writers behind a reader for 4s: %d scripts", calls.Scripts())
	seconds := int64(time.Since(began)/time.Second) + 1
	// And a few looks more, if the machine is slow to confirm the subscription.
	require.LessOrEqual(t, calls.Scripts(), 2*seconds+12, "an acquire and a look at the reader each time")
	require.Equal(t, "1", srv.Do(t, "ZCARD", "holdfast_rwlock_writers:{"+key(t)+"}"), "after more than its life")
	unlock(t, r)
	wg.Wait()
}

// An endless stream of writers, two of them: whoever waits to read when a writer leaves
// is in before the next one.
func TestTurn_readersThatWaitEnterAfterEachWriter(t *testing.T) {
	for _, c := range []struct {
		name string
		here bool // the reader is in the process of some of the writers
		o    holdfast.Options
		most int64 // writes that may go on before it
	}{
		{"in another process", false, holdfast.Options{Handoff: -1}, 1},
		{"in a process of writers", true, holdfast.Options{Handoff: -1}, 1},
		// Between goroutines of one process the lock is handed over for 5 ms.
		{"in another process than writers who hand over", false, holdfast.Options{}, 1 + 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			one, two := session(t, redisAddr), session(t, redisAddr)
			locks := []*rwlock.Lock{newLock(t, one, key(t), c.o), newLock(t, two, key(t), c.o)}
			reading := newLock(t, session(t, redisAddr), key(t))
			if c.here {
				reading = newLock(t, one, key(t))
			}
			var writes atomic.Int64
			stop, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			for _, l := range locks {
				for range 3 {
					wg.Go(func() {
						for stop.Err() == nil {
							_ = l.Writer().Do(stop, func(context.Context) error {
								writes.Add(1)
								time.Sleep(2 * time.Millisecond)
								return nil
							})
						}
					})
				}
			}
			most := int64(0)
			for turn := range 40 {
				entered := make(chan int64, 1)
				go func() {
					_, lease, err := reading.Reader().Lock(within(t, 20*time.Second))
					if err != nil {
						t.Error(err)
						entered <- 0
						return
					}
					entered <- writes.Load()
					_ = lease.Unlock(context.Background())
				}()
				// From when it is noted, one writer is in, and no other gets in.
				noted := int64(-1)
				var after int64
				for noted < 0 {
					if server.Do(t, "EXISTS", readersOf(t), turnOf(t)) != "0" {
						noted = writes.Load()
					}
					select {
					case after = <-entered:
						noted = max(noted, after)
						entered <- after
					default:
					}
				}
				after = <-entered
				most = max(most, after-noted)
				require.LessOrEqual(t, after-noted, c.most, "turn %d", turn)
			}
			t.Logf("40 reads among %d writes; at most %d writes went on before one that waited", writes.Load(), most)
		})
	}
}

// All that wait are let in, whatever their terms and how many commands it takes, before
// the writer that waits too.
func TestTurn_lastsUntilAllOfAProcessAreIn(t *testing.T) {
	hf := session(t, redisAddr)
	_, w := lock(t, newLock(t, session(t, redisAddr), key(t)).Writer())
	var writers, late atomic.Int64
	var wg sync.WaitGroup
	in := make(chan struct{}, 20)
	hold := make(chan struct{})
	for i := range 20 {
		l := newLock(t, hf, key(t), holdfast.Options{Fixed: true, Lease: time.Duration(20+i) * time.Second})
		wg.Go(func() {
			_ = l.Reader().Do(within(t, 20*time.Second), func(context.Context) error {
				late.Add(writers.Load())
				in <- struct{}{}
				<-hold
				return nil
			})
		})
	}
	waiting(t, hf, 20)
	redistest.Eventually(t, 10*time.Second, "they are noted", func() bool { return server.Do(t, "EXISTS", readersOf(t)) == "1" })
	other := session(t, redisAddr)
	next := newLock(t, other, key(t))
	wg.Go(func() {
		_ = next.Writer().Do(within(t, 20*time.Second), func(context.Context) error { writers.Add(1); return nil })
	})
	waiting(t, other, 1)
	unlock(t, w)
	for range 20 {
		<-in
	}
	require.Zero(t, writers.Load())
	close(hold)
	wg.Wait()
	require.Zero(t, late.Load())
	require.EqualValues(t, 1, writers.Load())
}

// Readers that give up give their turn up too.
func TestTurn_isGivenUpByThoseWhoLeave(t *testing.T) {
	hf := session(t, redisAddr)
	l := newLock(t, session(t, redisAddr), key(t))
	_, w := lock(t, l.Writer())
	ctx, cancel := context.WithCancel(context.Background())
	gave := make(chan error, 1)
	go func() {
		_, _, err := newLock(t, hf, key(t)).Reader().Lock(ctx)
		gave <- err
	}()
	redistest.Eventually(t, 10*time.Second, "it is noted", func() bool { return server.Do(t, "EXISTS", readersOf(t)) == "1" })
	listening(t, server, 1) // so it has its answer
	cancel()
	require.ErrorIs(t, <-gave, holdfast.ErrNotAcquired)
	redistest.Eventually(t, 10*time.Second, "it is noted no more", func() bool { return server.Do(t, "EXISTS", readersOf(t)) == "0" })
	unlock(t, w)
	free(t, l.Writer())
	require.Equal(t, "0", server.Do(t, "EXISTS", turnOf(t)))
}
