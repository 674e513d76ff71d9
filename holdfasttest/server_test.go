package holdfasttest_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/reentrant"
)

// everywhere runs a test on the real clock and in a bubble.
func everywhere(t *testing.T, test func(t *testing.T)) {
	t.Run("clock", test)
	t.Run("bubble", func(t *testing.T) { synctest.Test(t, test) })
}

// silent are options without a logger.
func silent() holdfast.SessionOptions {
	return holdfast.SessionOptions{Logger: slog.New(slog.DiscardHandler)}
}

func newLock(t *testing.T, hf *holdfast.Session, o ...holdfast.Options) *reentrant.Lock {
	t.Helper()
	o = append(o, holdfast.Options{})
	l, err := reentrant.New(hf, "orders", o[0])
	require.NoError(t, err)
	return l
}

// take takes l without waiting.
func take(t *testing.T, l *reentrant.Lock) (context.Context, *holdfast.Lease) {
	t.Helper()
	ctx, lease, err := l.TryLock(t.Context())
	require.NoError(t, err)
	return ctx, lease
}

// await waits for l and reports how long that took.
func await(l *reentrant.Lock) <-chan time.Duration {
	got, began := make(chan time.Duration, 1), time.Now()
	go func() {
		_, lease, err := l.Lock(context.Background())
		if err != nil {
			close(got)
			return
		}
		after := time.Since(began)
		_ = lease.Unlock(context.Background())
		got <- after
	}()
	return got
}

func reason(ctx context.Context) holdfast.Reason {
	var lost *holdfast.LostError
	errors.As(context.Cause(ctx), &lost)
	if lost == nil {
		return ""
	}
	return lost.Reason
}

func TestNew_aLockWorks(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		hf := holdfasttest.New(t)
		l := newLock(t, hf, holdfast.Options{Fencing: true})
		require.NoError(t, l.Do(t.Context(), func(ctx context.Context) error {
			return l.Do(ctx, func(ctx context.Context) error {
				require.Equal(t, 2, l.Held(ctx).Holds())
				require.NotZero(t, l.Held(ctx).Token())
				return nil
			})
		}))
	})
}

func TestBubble_aLeaseIsRenewedForFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := holdfasttest.NewServer(t)
		var renewed atomic.Int64
		hf := srv.Session(holdfast.SessionOptions{
			StallAfter: -1,
			Observer:   holdfast.Observer{Renewed: func(e holdfast.Renewed) { renewed.Add(int64(e.Renewed)) }},
		})
		ctx, lease := take(t, newLock(t, hf))
		for range 300 {
			time.Sleep(time.Second)
			require.NoError(t, ctx.Err())
			require.True(t, lease.Valid())
			require.Equal(t, lease.Owner(), srv.Owner("orders"))
			require.Greater(t, srv.Left("orders"), 19*time.Second)
		}
		require.InDelta(t, 30, renewed.Load(), 3, "one each third of a lease")
		require.NoError(t, lease.Unlock(ctx))
		require.Empty(t, srv.Owner("orders"))
	})
}

func TestBubble_aLostLeaseEndsTheContextAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := holdfasttest.NewServer(t)
		hf := srv.Session(silent())
		ctx, lease := take(t, newLock(t, hf, holdfast.Options{Lease: 10 * time.Second}))
		srv.Down()
		began := time.Now()
		time.Sleep(5 * time.Second)
		require.Equal(t, holdfast.StateUnsure, lease.State())
		<-ctx.Done()
		require.Equal(t, holdfast.ReasonExpired, reason(ctx))
		require.InDelta(t, 9898, time.Since(began).Milliseconds(), 1, "lease, less 1 % and 2 ms")
		require.Equal(t, lease.Owner(), srv.Owner("orders"), "told before Redis lets go")
		time.Sleep(200 * time.Millisecond)
		require.Empty(t, srv.Owner("orders"))
		srv.Up()
		require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrLost)
		require.NoError(t, newLock(t, hf).Do(t.Context(), func(context.Context) error { return nil }))
	})
}

func TestBubble_twoSessionsContendAndWakeEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := holdfasttest.NewServer(t)
		a, b := newLock(t, srv.Session()), newLock(t, srv.Session())
		for range 5 {
			ctx, lease := take(t, a)
			require.True(t, strings.HasPrefix(srv.Owner("orders"), "process-1/"))
			got := await(b)
			time.Sleep(5 * time.Second)
			require.NoError(t, lease.Unlock(ctx))
			require.Equal(t, 5*time.Second, <-got, "woken by the message, in no time")
			synctest.Wait()
			a, b = b, a
			ctx, lease = take(t, a)
			require.True(t, strings.HasPrefix(srv.Owner("orders"), "process-2/"))
			require.NoError(t, lease.Unlock(ctx))
			a, b = b, a
		}
	})
}

func TestBubble_maxHoldEndsAForgottenHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := holdfasttest.NewServer(t)
		began := time.Now()
		ctx, _ := take(t, newLock(t, srv.Session(silent()), holdfast.Options{MaxHold: 2 * time.Minute}))
		got := await(newLock(t, srv.Session(silent())))
		<-ctx.Done()
		require.Equal(t, holdfast.ReasonMaxHold, reason(ctx))
		require.Equal(t, 2*time.Minute, time.Since(began))
		require.InDelta(t, 150, (<-got).Seconds(), 11, "at the end of its lease the other gets in")
	})
}

func TestBubble_aStallIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		hf := holdfasttest.New(t, holdfast.SessionOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, lease := take(t, newLock(t, hf))
		time.Sleep(61 * time.Second)
		synctest.Wait()
		require.Contains(t, log.String(), "lock stalled")
		require.NoError(t, lease.Unlock(ctx))
	})
}

func TestBubble_anHourOfWaitingIsQuick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := holdfasttest.NewServer(t)
		release := srv.Take("orders", 2*time.Hour)
		o := silent()
		o.StallAfter = -1
		hf := srv.Session(o)
		got := await(newLock(t, hf))
		time.Sleep(time.Hour)
		require.Equal(t, 1, hf.Stats().Waiting)
		release()
		require.Equal(t, time.Hour, <-got)
	})
}

func TestLose_tellsTheHolderAtOnceAndWakesAWaiter(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		srv := holdfasttest.NewServer(t)
		for _, prefix := range []string{"", "app:"} {
			o := silent()
			o.Prefix, o.Label = prefix, prefix+"a"
			hf := srv.Session(o)
			o.Label += "/b" // begins like the other
			other := srv.Session(o)
			ctx, lease := take(t, newLock(t, hf))
			got := await(newLock(t, other))
			for other.Stats().Waiting == 0 {
				time.Sleep(time.Millisecond)
			}
			began := time.Now()
			srv.Lose(prefix + "orders")
			<-ctx.Done()
			require.Equal(t, holdfast.ReasonForced, reason(ctx))
			require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrLost)
			<-got
			require.Less(t, time.Since(began), 5*time.Second, "not by the renewal")
		}
	})
}

func TestExpire_isLearntAtTheNextRenewal(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		srv := holdfasttest.NewServer(t)
		ctx, _ := take(t, newLock(t, srv.Session(silent()), holdfast.Options{Lease: 1500 * time.Millisecond}))
		srv.Expire("orders")
		require.Empty(t, srv.Owner("orders"))
		require.Zero(t, srv.Left("orders"))
		<-ctx.Done()
		require.Equal(t, holdfast.ReasonExpired, reason(ctx))
	})
}

func TestTake_keepsOthersOutUntilItsEnd(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		srv := holdfasttest.NewServer(t)
		l := newLock(t, srv.Session())
		began := time.Now()
		release := srv.Take("orders", 1500*time.Millisecond)
		require.Equal(t, "somebody else 1", srv.Owner("orders"))
		_, _, err := l.TryLock(t.Context())
		require.ErrorIs(t, err, holdfast.ErrNotAcquired)
		<-await(l)
		require.GreaterOrEqual(t, time.Since(began), 1490*time.Millisecond)
		ctx, lease := take(t, l)
		release() // too late, and harmless
		require.Equal(t, lease.Owner(), srv.Owner("orders"))
		require.NoError(t, lease.Unlock(ctx))
	})
}

func TestTake_takesTheLockAway(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		srv := holdfasttest.NewServer(t)
		l := newLock(t, srv.Session(silent()), holdfast.Options{Lease: 3 * time.Second})
		ctx, _ := take(t, l)
		release := srv.Take("orders", time.Minute)
		<-ctx.Done()
		require.Equal(t, holdfast.ReasonTaken, reason(ctx))
		got := await(l)
		time.Sleep(50 * time.Millisecond)
		release()
		require.Less(t, <-got, 20*time.Second, "woken")
	})
}

func TestDown_isAnOutageAndNeverTaken(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		srv := holdfasttest.NewServer(t)
		o := silent()
		o.Timeout = 100 * time.Millisecond
		hf := srv.Session(o)
		l, client := newLock(t, hf), srv.Client()
		for name, trouble := range map[string]func(...*holdfast.Session){"down": srv.Down, "hang": srv.Hang} {
			trouble()
			_, _, err := l.TryLock(t.Context())
			require.ErrorIs(t, err, holdfast.ErrUnavailable, name)
			require.NotErrorIs(t, err, holdfast.ErrNotAcquired, name)
			bound, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			require.Error(t, client.Do(bound, client.B().Ping().Build()).Error(), name)
			cancel()

			srv.Up()
			require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }), name)
			require.Eventually(t, func() bool {
				return client.Do(t.Context(), client.B().Ping().Build()).Error() == nil
			}, 5*time.Second, time.Millisecond, name)
		}
	})
}

func TestDown_isSoForClientsToComeToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := holdfasttest.NewServer(t)
		for name, trouble := range map[string]func(...*holdfast.Session){"down": srv.Down, "hang": srv.Hang} {
			trouble()
			l, client := newLock(t, srv.Session(silent())), srv.Client()
			_, _, err := l.TryLock(t.Context())
			require.ErrorIs(t, err, holdfast.ErrUnavailable, name)
			srv.Up()
			synctest.Wait()
			require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }), name)
			require.NoError(t, client.Do(t.Context(), client.B().Ping().Build()).Error(), name)
		}
	})
}

func TestDown_ofOneProcessLetsTheOtherIn(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		srv := holdfasttest.NewServer(t)
		for name, trouble := range map[string]func(...*holdfast.Session){"down": srv.Down, "hang": srv.Hang} {
			hf, other := srv.Session(silent()), srv.Session()
			ctx, lease := take(t, newLock(t, hf, holdfast.Options{Lease: 1500 * time.Millisecond}))
			trouble(hf)
			await, theirs, err := newLock(t, other).Lock(t.Context())
			require.NoError(t, err, name)
			require.False(t, lease.Valid(), "over before the other got in")
			<-ctx.Done() // before that too, unless this process stood still just then
			require.Equal(t, holdfast.ReasonExpired, reason(ctx))
			require.NoError(t, theirs.Unlock(await))
			srv.Up(hf)
			require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrLost)
		}
	})
}

func TestDown_aWaiterIsWokenAfterIt(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		srv := holdfasttest.NewServer(t)
		hf, other := srv.Session(), srv.Session()
		ctx, lease := take(t, newLock(t, hf))
		got := await(newLock(t, other))
		for other.Stats().Subscriptions == 0 {
			time.Sleep(time.Millisecond)
		}
		srv.Down(other)
		require.NoError(t, lease.Unlock(ctx)) // the message is lost
		time.Sleep(20 * time.Millisecond)
		srv.Up(other)
		require.Less(t, <-got, 5*time.Second)
	})
}

func TestClient_closedBeforeItsSessionCostsTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := holdfasttest.NewServer(t)
		client := srv.Client()
		hf, err := holdfast.New(client, silent())
		require.NoError(t, err)
		began := time.Now()
		ctx, lease := take(t, newLock(t, hf))
		client.Close()
		<-ctx.Done()
		require.Equal(t, holdfast.ReasonExpired, reason(ctx))
		require.InDelta(t, 29.7, time.Since(began).Seconds(), 0.1)
		require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrLost)

		bound, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, _, err = newLock(t, hf).Lock(bound)
		require.ErrorIs(t, err, holdfast.ErrUnavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, hf.Close(t.Context()))
	})
}

func TestCleanup_endsWhatIsStillHeldEvenWhenTheServerIsDown(t *testing.T) {
	for name, trouble := range map[string]func(*holdfasttest.Server){
		"up":   func(*holdfasttest.Server) {},
		"down": func(s *holdfasttest.Server) { s.Down() },
		"hang": func(s *holdfasttest.Server) { s.Hang() },
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T) {
				tb := newTB()
				srv := holdfasttest.NewServer(tb)
				l := newLock(t, srv.Session(silent()))
				srv.Client()
				ctx, _ := take(t, l)
				got := await(newLock(t, srv.Session(silent())))
				trouble(srv)
				began := time.Now()
				tb.end()
				require.Less(t, time.Since(began), 2800*time.Millisecond, "less than the Timeout of a session")
				require.Equal(t, holdfast.ReasonClosed, reason(ctx))
				<-got
			})
		})
	}
}

func TestCleanup_waitsForReleasesThatAClosedSessionLeftBehind(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		tb := newTB()
		srv := holdfasttest.NewServer(tb)
		o := silent()
		o.Timeout = time.Second
		hf := srv.Session(o)
		_, lease := take(t, newLock(t, hf))
		srv.Down()
		over, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, hf.Close(over), context.DeadlineExceeded)
		require.ErrorIs(t, lease.Unlock(t.Context()), holdfast.ErrLost)
		tb.end()
	})
}

func TestSession_optionsAreItsOwn(t *testing.T) {
	srv := holdfasttest.NewServer(t)
	hf := srv.Session(holdfast.SessionOptions{Label: "worker", Prefix: "app:"})
	l := newLock(t, hf)
	ctx, lease := take(t, l)
	require.True(t, strings.HasPrefix(srv.Owner("app:orders"), "worker/"))
	require.InDelta(t, 30, srv.Left("app:orders").Seconds(), 5)
	require.NoError(t, lease.Unlock(ctx))
}

func TestSession_worksWithTheFamilyOfAnyProduction(t *testing.T) {
	for f := holdfast.FamilyAuto; f <= holdfast.FamilyBoth; f++ {
		hf := holdfasttest.New(t, holdfast.SessionOptions{Family: f})
		require.NoError(t, newLock(t, hf).Do(t.Context(), func(context.Context) error { return nil }))
		ctx, lease := take(t, newLock(t, hf))
		require.NoError(t, lease.Unlock(ctx))
	}
}

func TestSession_mayBeClosedAndMadeAgain(t *testing.T) {
	srv := holdfasttest.NewServer(t)
	for range 3 {
		hf := srv.Session(holdfast.SessionOptions{Label: "worker", Logger: slog.New(slog.DiscardHandler)})
		ctx, lease := take(t, newLock(t, hf))
		srv.Lose("orders")
		<-ctx.Done()
		require.ErrorIs(t, lease.Unlock(ctx), holdfast.ErrLost)
		require.NoError(t, hf.Close(t.Context()))
	}
}

func TestFence_worksBesideIt(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		srv := holdfasttest.NewServer(t)
		client := srv.Client()
		l := newLock(t, srv.Session(silent()), holdfast.Options{Fencing: true})
		_, old := take(t, l)
		srv.Lose("orders")
		<-old.Context().Done()
		_, lease, err := l.Lock(t.Context())
		require.NoError(t, err)
		require.NoError(t, fence.Set(t.Context(), client, "balance", lease.Token(), "100"))
		require.ErrorIs(t, fence.Set(t.Context(), client, "balance", old.Token(), "0"), fence.ErrStaleToken)
	})
}

func TestClient_aLargePipelineDoesNotBlock(t *testing.T) {
	client := holdfasttest.NewServer(t).Client()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	value := strings.Repeat("x", 1000)
	cmds := client.B()
	for range 3 {
		results := client.DoMulti(ctx,
			cmds.Mset().KeyValue().KeyValue("a", strings.Repeat(value, 100)).Build(),
			cmds.Get().Key("a").Build(), cmds.Get().Key("a").Build(), cmds.Get().Key("a").Build(),
			cmds.Set().Key("b").Value(strings.Repeat(value, 100)).Build(),
		)
		for _, r := range results {
			require.NoError(t, r.Error())
		}
	}
}

func TestMisuse_failsTheTest(t *testing.T) {
	for want, misuse := range map[string]func(s *holdfasttest.Server){
		"want one at most": func(s *holdfasttest.Server) { s.Session(silent(), silent()) },
		`has the Label "a"`: func(s *holdfasttest.Server) {
			s.Session(holdfast.SessionOptions{Label: "a"})
			s.Session(holdfast.SessionOptions{Label: "a"})
		},
		"Timeout is":                  func(s *holdfasttest.Server) { s.Session(holdfast.SessionOptions{Timeout: -1}) },
		"not of this server":          func(s *holdfasttest.Server) { s.Down(holdfasttest.New(newTBOf(t))) },
		"the session is not of":       func(s *holdfasttest.Server) { s.Up(nil) },
		`nobody holds "orders"`:       func(s *holdfasttest.Server) { s.Lose("orders") },
		"which is no session of this": func(s *holdfasttest.Server) { s.Take("orders", time.Minute); s.Lose("orders") },
		"is no lock": func(s *holdfasttest.Server) {
			c := s.Client()
			c.Do(context.Background(), c.B().Set().Key("text").Value("x").Build())
			s.Owner("text")
		},
	} {
		t.Run(want, func(t *testing.T) {
			tb := newTB()
			defer tb.end()
			s := holdfasttest.NewServer(tb)
			require.Contains(t, tb.failure(func() { misuse(s) }), want)
		})
	}
}
