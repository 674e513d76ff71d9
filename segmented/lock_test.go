package segmented_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/scripts"
	"github.com/holdfast-go/holdfast/segmented"
)

func TestNew_badOptionsAreRefusedAtTheDoor(t *testing.T) {
	hf := session(t, server.Addr())
	for name, want := range map[string]error{
		"":                       holdfast.ErrName,
		"a{b}":                   holdfast.ErrName, // all segments in one slot
		"a{":                     holdfast.ErrName,
		"a}":                     holdfast.ErrName,
		strings.Repeat("x", 510): holdfast.ErrName,
	} {
		_, err := segmented.New(hf, name, segmented.Options{})
		require.ErrorIs(t, err, want, "%q", name)
		require.Contains(t, err.Error(), "segmented: ")
	}
	_, err := segmented.New(session(t, server.Addr(), holdfast.SessionOptions{Prefix: "{app}:"}), "a", segmented.Options{})
	require.ErrorIs(t, err, holdfast.ErrName)
	for _, o := range []segmented.Options{
		{Segments: -1},
		{Segments: 1025},
		{Options: holdfast.Options{Lease: time.Millisecond}},
		{Options: holdfast.Options{TokenRetention: time.Hour}},
	} {
		_, err := segmented.New(hf, "a", o)
		require.ErrorIs(t, err, holdfast.ErrOption, "%+v", o)
	}
	_, err = segmented.New(nil, "a", segmented.Options{})
	require.ErrorIs(t, err, holdfast.ErrOption)
}

func TestNew_asksNothing(t *testing.T) {
	b := breakable(t)
	hf := session(t, b.proxy.Addr())
	before := b.Calls(t)
	l := newLock(t, hf, "app", segmented.Options{})
	l.For("4711")
	require.Zero(t, b.Calls(t).Since(before).Scripts())
	require.Equal(t, 64, l.Segments())
	require.Equal(t, "app", l.Name())
	require.Equal(t, "x:app", newLock(t, session(t, b.Addr(), holdfast.SessionOptions{Prefix: "x:"}), "app", segmented.Options{}).Name())
}

func TestSegments_theNumberIsRecordedAtFirstUse(t *testing.T) {
	srv := redistest.Run(t)
	first := newLock(t, session(t, srv.Addr()), "app", segmented.Options{Segments: 100})
	second := newLock(t, session(t, srv.Addr()), "app", segmented.Options{Segments: 128})
	require.NoError(t, first.For("4711").Do(t.Context(), func(context.Context) error { return nil }))
	require.Equal(t, "100", srv.Do(t, "GET", "holdfast_segments:{app}"))
	require.Equal(t, "-1", srv.Do(t, "PTTL", "holdfast_segments:{app}"))

	refused := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, holdfast.ErrOption)
		require.NotErrorIs(t, err, holdfast.ErrUnavailable)
		require.ErrorContains(t, err, "Segments is 128, and the lock was first used with 100")
	}
	for range 2 { // it does not wear off
		ctx, _, err := second.For("4711").Lock(t.Context())
		refused(err)
		require.Equal(t, t.Context(), ctx)
		_, _, err = second.For("4711").TryLock(t.Context())
		refused(err)
		_, err = second.For("4711").Info(t.Context())
		refused(err)
		_, err = second.For("4711").ForceUnlock(t.Context())
		refused(err)
		_, _, err = second.LockKeys(t.Context(), "4711")
		refused(err)
		_, _, err = second.LockAll(t.Context())
		refused(err)
		_, _, i, err := second.LockAny(t.Context())
		refused(err)
		require.Equal(t, -1, i)
	}
	require.Equal(t, []string{"holdfast_segments:{app}"}, srv.Keys(t, "*"))
	again := newLock(t, session(t, srv.Addr()), "app", segmented.Options{Segments: 100})
	require.NoError(t, again.For("4711").Do(t.Context(), func(context.Context) error { return nil }))
}

func TestSegments_ofTwoNumbersAtOnceOneIsRecorded(t *testing.T) {
	srv := redistest.Run(t)
	for round := range 20 {
		var won atomic.Int64
		var wg sync.WaitGroup
		for _, n := range []int{2, 3, 4, 5} {
			l := newLock(t, session(t, srv.Addr()), fmt.Sprint("app", round), segmented.Options{Segments: n})
			for i := range 4 {
				wg.Go(func() {
					err := l.For(fmt.Sprint(i)).Do(context.Background(), func(context.Context) error { return nil })
					if err == nil {
						won.Add(1)
					} else if !errors.Is(err, holdfast.ErrOption) {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		require.EqualValues(t, 4, won.Load())
	}
}

func TestSegments_theRecordIsReadOnce(t *testing.T) {
	srv := redistest.Run(t)
	l := newLock(t, session(t, srv.Addr()), "app", segmented.Options{})
	pair := func(i int) {
		require.NoError(t, l.For(fmt.Sprint(i)).Do(context.Background(), func(context.Context) error { return nil }))
	}
	pair(0)
	before := srv.Calls(t)
	for i := range 100 {
		pair(i)
	}
	require.EqualValues(t, 200, srv.Calls(t).Since(before).Scripts())
}

func TestSegments_aLostReplyToTheRecordIsAskedForAgain(t *testing.T) {
	b := breakable(t)
	l := newLock(t, session(t, b.proxy.Addr()), "app", segmented.Options{})
	trap := b.proxy.DropReply(sha(t, b.Server, scripts.SegmentedCount), 1)
	require.NoError(t, l.For("4711").Do(within(t, 10*time.Second), func(context.Context) error { return nil }))
	<-trap.Done()
	require.Equal(t, "64", b.Do(t, "GET", "holdfast_segments:{app}"))
}

func TestSegments_anOutageOfTheRecordIsNotTaken(t *testing.T) {
	b := breakable(t)
	l := newLock(t, session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: 200 * time.Millisecond}), "app", segmented.Options{})
	b.proxy.Refuse()
	_, _, err := l.For("4711").TryLock(t.Context())
	require.ErrorIs(t, err, holdfast.ErrUnavailable)
	require.NotErrorIs(t, err, holdfast.ErrNotAcquired)
	require.NotErrorIs(t, err, holdfast.ErrOption)
	b.proxy.Pass()
	require.NoError(t, l.For("4711").Do(within(t, 10*time.Second), func(context.Context) error { return nil }))
}

func TestSegments_aRecordOfOtherDataIsLeftAlone(t *testing.T) {
	srv := redistest.Run(t)
	srv.Do(t, "RPUSH", "holdfast_segments:{app}", "a")
	_, _, err := newLock(t, session(t, srv.Addr()), "app", segmented.Options{}).For("4711").Lock(t.Context())
	require.ErrorIs(t, err, holdfast.ErrWrongType)
	require.Equal(t, []string{"holdfast_segments:{app}"}, srv.Keys(t, "*"))
}

func TestFor_isTheLockOfTheKeysSegment(t *testing.T) {
	srv := redistest.Run(t)
	mine := newLock(t, session(t, srv.Addr()), "app", segmented.Options{Segments: 8})
	theirs := newLock(t, session(t, srv.Addr()), "app", segmented.Options{Segments: 8})
	for i := range 50 {
		k := fmt.Sprint(i)
		require.Equal(t, int(segmented.Hash(k)%8), mine.Segment(k))
		require.Equal(t, fmt.Sprint("app:segment:", mine.Segment(k)), mine.For(k).Name())
	}
	ctx, lease, err := mine.For("4711").Lock(t.Context())
	require.NoError(t, err)
	require.Equal(t, mine.For("4711").Name(), lease.Name())
	for i := range 50 {
		k := fmt.Sprint(i)
		_, other, err := theirs.For(k).TryLock(t.Context())
		if mine.Segment(k) == mine.Segment("4711") {
			require.ErrorIs(t, err, holdfast.ErrNotAcquired, k)
			continue
		}
		require.NoError(t, err, k)
		require.NoError(t, other.Unlock(t.Context()))
	}
	_, nested, err := mine.For("4711").Lock(ctx)
	require.NoError(t, err, "it is re-entered through ctx")
	require.NoError(t, nested.Unlock(ctx))
	require.NoError(t, lease.Unlock(ctx))

	_, _, err = mine.For("").Lock(t.Context())
	require.ErrorIs(t, err, holdfast.ErrName)
}

func TestFor_tokensRiseInEachSegment(t *testing.T) {
	l := newLock(t, session(t, server.Addr()), key(t), segmented.Options{Options: holdfast.Options{Fencing: true}})
	last := uint64(0)
	for range 5 {
		ctx, lease, err := l.For("4711").Lock(t.Context())
		require.NoError(t, err)
		require.Greater(t, lease.Token(), last)
		last = lease.Token()
		require.NoError(t, lease.Unlock(ctx))
	}
}

func TestSegments_lieInDifferentSlots(t *testing.T) {
	srv := redistest.Run(t, redistest.Options{Cluster: true})
	for _, name := range []string{"app", "orders", "a", "größe"} {
		l := newLock(t, session(t, srv.Addr()), name, segmented.Options{})
		slots, thirds := map[string]bool{}, map[int]int{}
		for i := range 10_000 {
			n := l.For(fmt.Sprint(i)).Name()
			slot := srv.Do(t, "CLUSTER", "KEYSLOT", n)
			slots[slot] = true
			if len(slots) == l.Segments() {
				break
			}
		}
		for slot := range slots {
			n, err := strconv.Atoi(slot)
			require.NoError(t, err)
			thirds[n*3/16384]++
		}
		require.GreaterOrEqual(t, len(slots), 62, name)
		for third, n := range thirds { // as three primaries would have them
			require.GreaterOrEqual(t, n, 10, "%s, %d", name, third)
		}
	}
}

func TestCluster_noCallOfAStripedLockCrossesSlots(t *testing.T) {
	srv := redistest.Run(t, redistest.Options{Cluster: true})
	l := newLock(t, session(t, srv.Addr(), holdfast.SessionOptions{Receipts: true, Prefix: "p:"}), "app",
		segmented.Options{Segments: 16, Options: holdfast.Options{Fencing: true}})
	ctx, joint, err := l.LockAll(within(t, 10*time.Second))
	require.NoError(t, err)
	require.Len(t, joint.Parts(), 16)
	_, nested, err := l.LockKeys(ctx, "1", "2", "3", "4")
	require.NoError(t, err)
	require.NoError(t, nested.Unlock(ctx))
	require.NoError(t, joint.Unlock(ctx))
	_, lease, _, err := l.LockAny(within(t, 10*time.Second))
	require.NoError(t, err)
	require.NoError(t, lease.Unlock(t.Context()))
}

func TestLockKeys_takesInOneOrderAndReleasesAll(t *testing.T) {
	srv := redistest.Run(t)
	l := newLock(t, session(t, srv.Addr()), "app", segmented.Options{Segments: 16})
	var order []string
	for range 10 {
		keys := []string{"a", "b", "c", "d", "e", "f", "g", "a"}
		rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		ctx, joint, err := l.LockKeys(t.Context(), keys...)
		require.NoError(t, err)
		segments := map[int]bool{}
		for _, k := range keys {
			segments[l.Segment(k)] = true
			require.NotNil(t, l.For(k).Held(ctx), k)
		}
		require.Len(t, joint.Parts(), len(segments), "each segment once")
		var names []string
		for _, part := range joint.Parts() {
			require.True(t, part.Valid())
			names = append(names, part.Name())
		}
		if order == nil {
			order = names
		}
		require.Equal(t, order, names)
		require.Equal(t, holdfast.StateHeld, joint.State())
		require.True(t, joint.Valid())
		require.Greater(t, joint.Remaining(), 20*time.Second)
		require.Equal(t, ctx, joint.Context())
		require.NoError(t, joint.Unlock(ctx))
		require.ErrorIs(t, context.Cause(ctx), holdfast.ErrNotHeld)
		require.ErrorIs(t, joint.Unlock(ctx), holdfast.ErrNotHeld)
		require.Equal(t, holdfast.StateReleased, joint.State())
		require.False(t, joint.Valid())
		require.Equal(t, []string{"holdfast_segments:{app}"}, srv.Keys(t, "*"))
	}
	_, _, err := l.LockKeys(t.Context())
	require.ErrorIs(t, err, holdfast.ErrOption)
	_, _, err = l.LockKeys(t.Context(), "a", "")
	require.ErrorIs(t, err, holdfast.ErrName)
	require.Equal(t, []string{"holdfast_segments:{app}"}, srv.Keys(t, "*"))
}

func TestJoint_nilIsNotHeld(t *testing.T) {
	var j *segmented.Joint
	require.ErrorIs(t, j.Unlock(t.Context()), holdfast.ErrNotHeld)
	require.ErrorIs(t, context.Cause(j.Context()), holdfast.ErrNotHeld)
	require.Equal(t, holdfast.StateReleased, j.State())
	require.False(t, j.Valid())
	require.Empty(t, j.Parts())
}

func TestLockKeys_aSegmentThatCannotBeHadCostsNothing(t *testing.T) {
	srv := redistest.Run(t)
	theirs := newLock(t, session(t, srv.Addr()), "app", segmented.Options{Segments: 16})
	hf := session(t, srv.Addr())
	l := newLock(t, hf, "app", segmented.Options{Segments: 16, Options: holdfast.Options{Wait: time.Second}})
	keys := []string{"a", "b", "c", "d", "e", "f", "g"}
	for _, taken := range keys[:4] {
		_, lease, err := theirs.For(taken).Lock(t.Context())
		require.NoError(t, err)
		began := time.Now()
		ctx, joint, err := l.LockKeys(t.Context(), keys...)
		require.ErrorIs(t, err, holdfast.ErrNotAcquired)
		require.Nil(t, joint)
		require.Equal(t, t.Context(), ctx)
		require.NoError(t, ctx.Err())
		require.GreaterOrEqual(t, time.Since(began), 900*time.Millisecond)
		require.Less(t, time.Since(began), 5*time.Second, "Wait is for all of them together")
		require.Len(t, srv.Keys(t, "app:*"), 1)
		require.NoError(t, lease.Unlock(t.Context()))
	}
	require.Zero(t, hf.Stats().Held)

	// ctx ends, and so does the wait.
	patient := newLock(t, hf, "app", segmented.Options{Segments: 16})
	_, lease, err := theirs.For("d").Lock(t.Context())
	require.NoError(t, err)
	_, _, err = patient.LockKeys(within(t, time.Second), keys...)
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Len(t, srv.Keys(t, "app:*"), 1)
	require.NoError(t, lease.Unlock(t.Context()))

	// One attempt.
	once := newLock(t, hf, "app", segmented.Options{Segments: 16, Options: holdfast.Options{Wait: -1}})
	_, lease, err = theirs.For("d").Lock(t.Context())
	require.NoError(t, err)
	_, _, err = once.LockAll(t.Context())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.Len(t, srv.Keys(t, "app:*"), 1)
	require.NoError(t, lease.Unlock(t.Context()))
	_, joint, err := once.LockAll(t.Context())
	require.NoError(t, err)
	require.NoError(t, joint.Unlock(t.Context()))
}

func TestJoint_isLostWithItsFirstPart(t *testing.T) {
	srv := redistest.Run(t)
	hf := session(t, srv.Addr())
	l := newLock(t, hf, "app", segmented.Options{Segments: 16, Options: holdfast.Options{Lease: 3 * time.Second}}) // renewals are 1 s apart
	keys := []string{"a", "b", "c", "d"}
	for _, lost := range keys[1:3] {
		ctx, joint, err := l.LockKeys(t.Context(), keys...)
		require.NoError(t, err)
		srv.Do(t, "DEL", l.For(lost).Name())
		select {
		case <-ctx.Done():
		case <-time.After(2500 * time.Millisecond):
			t.Fatal("not told within a renewal")
		}
		var loss *holdfast.LostError
		require.ErrorAs(t, context.Cause(ctx), &loss)
		require.Equal(t, l.For(lost).Name(), loss.Name)
		require.Equal(t, holdfast.StateLost, joint.State())
		require.False(t, joint.Valid())
		require.ErrorIs(t, joint.Unlock(ctx), holdfast.ErrLost)
		require.Empty(t, srv.Keys(t, "app:*"), "the other parts are released")
		require.Zero(t, hf.Stats().Held)
	}
}

func TestLockKeys_aPartThatIsLostWhileTheNextIsWaitedForEndsTheWait(t *testing.T) {
	srv := redistest.Run(t)
	theirs := newLock(t, session(t, srv.Addr()), "app", segmented.Options{Segments: 16})
	hf := session(t, srv.Addr())
	l := newLock(t, hf, "app", segmented.Options{Segments: 16, Options: holdfast.Options{Lease: 2 * time.Second}})
	_, joint, err := l.LockAll(t.Context())
	require.NoError(t, err)
	first, last := joint.Parts()[0].Name(), joint.Parts()[15].Name()
	require.NoError(t, joint.Unlock(t.Context()))
	_, all, err := theirs.LockAll(t.Context())
	require.NoError(t, err)
	for _, part := range all.Parts() {
		if part.Name() != last {
			require.NoError(t, part.Unlock(t.Context()))
		}
	}
	done := make(chan error, 1)
	go func() {
		_, _, err := l.LockAll(within(t, 20*time.Second))
		done <- err
	}()
	redistest.Eventually(t, 10*time.Second, "it waits for the last", func() bool { return hf.Stats().Held == 15 && hf.Stats().Waiting == 1 })
	srv.Do(t, "DEL", first)
	select {
	case err = <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("it waits on")
	}
	require.ErrorIs(t, err, holdfast.ErrLost)
	require.NotErrorIs(t, err, holdfast.ErrNotAcquired)
	require.Equal(t, []string{last}, srv.Keys(t, "app:*"))
	require.Zero(t, hf.Stats().Held)
	require.NoError(t, all.Parts()[15].Unlock(t.Context()))
}

func TestLockKeys_callersDoNotDeadlock(t *testing.T) {
	srv := redistest.Run(t)
	const processes, callers, rounds, segments = 3, 4, 25, 8
	inside := make([]atomic.Int64, segments)
	enter := func(l *segmented.Lock, ctx context.Context) (leave func()) {
		var held []int
		for i := range 100 {
			s := l.Segment(fmt.Sprint(i))
			if l.For(fmt.Sprint(i)).Held(ctx) != nil && !contains(held, s) {
				held = append(held, s)
				if inside[s].Add(1) != 1 {
					t.Errorf("two in segment %d", s)
				}
			}
		}
		return func() {
			for _, s := range held {
				inside[s].Add(-1)
			}
		}
	}
	var wg sync.WaitGroup
	ctx := within(t, 60*time.Second)
	for p := range processes {
		l := newLock(t, session(t, srv.Addr()), "app", segmented.Options{Segments: segments})
		for c := range callers {
			random := rand.New(rand.NewPCG(uint64(p), uint64(c)))
			wg.Go(func() {
				for range rounds {
					var held context.Context
					var unlock func(context.Context) error
					var err error
					switch random.IntN(8) {
					case 0:
						var joint *segmented.Joint
						held, joint, err = l.LockAll(ctx)
						unlock = joint.Unlock
					case 1:
						var lease *holdfast.Lease
						held, lease, _, err = l.LockAny(ctx)
						unlock = lease.Unlock
					case 2:
						var lease *holdfast.Lease
						held, lease, err = l.For(fmt.Sprint(random.IntN(100))).Lock(ctx)
						unlock = lease.Unlock
					default:
						var keys []string
						for range 1 + random.IntN(5) {
							keys = append(keys, fmt.Sprint(random.IntN(100)))
						}
						var joint *segmented.Joint
						held, joint, err = l.LockKeys(ctx, keys...)
						unlock = joint.Unlock
					}
					if err != nil {
						t.Error(err)
						return
					}
					leave := enter(l, held)
					leave()
					if err := unlock(held); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	require.Empty(t, srv.Keys(t, "app:*"))
}

func contains(list []int, n int) bool {
	for _, m := range list {
		if m == n {
			return true
		}
	}
	return false
}

func TestLockAll_costsAtMostTwoCommandsForEachSegment(t *testing.T) {
	srv := redistest.Run(t)
	l := newLock(t, session(t, srv.Addr()), "app", segmented.Options{})
	for i := range 2 {
		before := srv.Calls(t)
		_, joint, err := l.LockAll(t.Context())
		require.NoError(t, err)
		require.NoError(t, joint.Unlock(t.Context()))
		calls := srv.Calls(t).Since(before)
		if i > 0 { // the scripts are known, and releases may travel together
			require.LessOrEqual(t, calls.Scripts(), int64(128))
			require.Greater(t, calls.Scripts(), int64(64))
		}
	}
}

func TestLockAny_takesEachSegmentOnceAndThenWaits(t *testing.T) {
	srv := redistest.Run(t)
	mine := newLock(t, session(t, srv.Addr()), "app", segmented.Options{Segments: 5})
	hf := session(t, srv.Addr())
	theirs := newLock(t, hf, "app", segmented.Options{Segments: 5})
	leases := map[int]*holdfast.Lease{}
	for n := range 5 {
		ctx, lease, i, err := []*segmented.Lock{mine, theirs}[n%2].LockAny(t.Context())
		require.NoError(t, err)
		require.Nil(t, leases[i])
		require.Equal(t, fmt.Sprint("app:segment:", i), lease.Name())
		require.NoError(t, ctx.Err())
		leases[i] = lease
		_, again, same, err := []*segmented.Lock{mine, theirs}[n%2].LockAny(ctx)
		require.NoError(t, err)
		require.Equal(t, i, same, "it is re-entered through ctx")
		require.NoError(t, again.Unlock(ctx))
	}
	once := newLock(t, hf, "app", segmented.Options{Segments: 5, Options: holdfast.Options{Wait: -1}})
	_, _, i, err := once.LockAny(t.Context())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.Equal(t, -1, i)

	brief := newLock(t, hf, "app", segmented.Options{Segments: 5, Options: holdfast.Options{Wait: time.Second}})
	_, _, _, err = brief.LockAny(t.Context())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	redistest.Eventually(t, 20*time.Second, "no subscription is left", func() bool { return len(srv.Channels(t)) == 0 })
	base := goroutines() // with all the client's connections
	began := time.Now()
	_, _, _, err = brief.LockAny(t.Context())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(began), 5*time.Second)
	_, _, _, err = theirs.LockAny(within(t, time.Second))
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	type got struct {
		ctx   context.Context
		lease *holdfast.Lease
		i     int
		err   error
	}
	done := make(chan got, 1)
	go func() {
		ctx, lease, i, err := theirs.LockAny(within(t, 20*time.Second))
		done <- got{ctx, lease, i, err}
	}()
	redistest.Eventually(t, 10*time.Second, "it waits for all", func() bool { return hf.Stats().Waiting == 5 && len(srv.Channels(t)) >= 3 })
	require.NoError(t, leases[3].Unlock(t.Context()))
	select {
	case g := <-done:
		require.NoError(t, g.err)
		require.Equal(t, 3, g.i)
		require.NoError(t, g.ctx.Err())
		require.True(t, g.lease.Valid())
		require.NotNil(t, segment(theirs, 3).Held(g.ctx))
		require.NoError(t, g.lease.Unlock(g.ctx))
	case <-time.After(15 * time.Second): // the lease had 30 s
		t.Fatal("not woken")
	}
	require.Zero(t, hf.Stats().Waiting)
	for i, lease := range leases {
		if i != 3 {
			require.NoError(t, lease.Unlock(t.Context()))
		}
	}
	require.Empty(t, srv.Keys(t, "app:*"))
	redistest.Eventually(t, 20*time.Second, "no subscription is left", func() bool { return len(srv.Channels(t)) == 0 })
	redistest.Eventually(t, 20*time.Second, "no goroutine is left", func() bool { return goroutines() <= base+2 })
}

// segment is the lock of segment i.
func segment(l *segmented.Lock, i int) interface {
	Held(context.Context) *holdfast.Lease
} {
	for n := 0; ; n++ {
		if k := fmt.Sprint(n); l.Segment(k) == i {
			return l.For(k)
		}
	}
}

func TestLockAny_manyGetDifferentSegments(t *testing.T) {
	srv := redistest.Run(t)
	const segments, callers = 4, 24
	inside := make([]atomic.Int64, segments)
	var wg sync.WaitGroup
	ctx := within(t, 60*time.Second)
	for range 3 {
		l := newLock(t, session(t, srv.Addr()), "app", segmented.Options{Segments: segments})
		for range callers / 3 {
			wg.Go(func() {
				for range 10 {
					held, lease, i, err := l.LockAny(ctx)
					if err != nil {
						t.Error(err)
						return
					}
					if inside[i].Add(1) != 1 {
						t.Errorf("two in segment %d", i)
					}
					inside[i].Add(-1)
					if err := lease.Unlock(held); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	redistest.Eventually(t, 20*time.Second, "what was granted too much is given back", func() bool { return len(srv.Keys(t, "app:*")) == 0 })
}

func TestLockAny_anOutageIsNotTaken(t *testing.T) {
	b := breakable(t)
	hf := session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: 200 * time.Millisecond})
	l := newLock(t, hf, "app", segmented.Options{Segments: 4})
	_, lease, _, err := l.LockAny(t.Context())
	require.NoError(t, err)
	require.NoError(t, lease.Unlock(t.Context()))
	b.proxy.Refuse()
	_, _, _, err = l.LockAny(within(t, 500*time.Millisecond))
	require.ErrorIs(t, err, holdfast.ErrUnavailable)
	require.NotErrorIs(t, err, holdfast.ErrNotAcquired)
	b.proxy.Pass()
	_, lease, _, err = l.LockAny(within(t, 10*time.Second))
	require.NoError(t, err)
	require.NoError(t, lease.Unlock(t.Context()))
}

func TestLock_aClosedSessionRefuses(t *testing.T) {
	hf := session(t, server.Addr())
	l := newLock(t, hf, key(t), segmented.Options{Segments: 4})
	require.NoError(t, hf.Close(t.Context()))
	_, _, err := l.LockKeys(t.Context(), "a", "b")
	require.ErrorIs(t, err, holdfast.ErrClosed)
	_, _, _, err = l.LockAny(t.Context())
	require.ErrorIs(t, err, holdfast.ErrClosed)
	_, err = segmented.New(hf, key(t), segmented.Options{})
	require.ErrorIs(t, err, holdfast.ErrClosed)
}

// The stock of many tutorials: read, think, write, under the lock of a segment. A
// buyer that stands still past its lease would write over the others' purchases;
// the fence refuses it.
func TestLock_aBuyerThatStoodStillPastItsLeaseSellsNothing(t *testing.T) {
	srv := redistest.Run(t)
	client := connect(t, srv.Addr())
	const segments, each = 4, 25
	o := segmented.Options{Segments: segments, Options: holdfast.Options{Lease: 100 * time.Millisecond, Fixed: true, Fencing: true}}
	stock := func(i int) string { return fmt.Sprint("stock:", i) }
	// The read shows the token as well: from then on nobody with an older one writes.
	get := fence.NewScript(`return redis.call('GET', KEYS[1])`)
	for i := range segments {
		srv.Do(t, "SET", stock(i), fmt.Sprint(each))
	}
	var keys []string // one of each segment
	for n := 0; len(keys) < segments; n++ {
		if int(segmented.Hash(fmt.Sprint(n))%segments) == len(keys) {
			keys = append(keys, fmt.Sprint(n))
		}
	}
	var sold, refused atomic.Int64
	// buy buys one unit of any segment that has one.
	buy := func(l *segmented.Lock, freeze bool) bool {
		for {
			empty := 0
			for n := range segments {
				k := keys[n]
				i := l.Segment(k)
				_, lease, err := l.For(k).Lock(within(t, 20*time.Second))
				if err != nil {
					t.Error(err)
					return false
				}
				m, err := get.Exec(t.Context(), client, stock(i), lease.Token(), []string{stock(i)}, nil)
				if errors.Is(err, fence.ErrStaleToken) { // it stood still before it had looked
					_ = lease.Unlock(t.Context())
					continue
				}
				left := int64(0)
				if err == nil {
					left, err = m.AsInt64()
				}
				if err != nil || left == 0 {
					empty++
					_ = lease.Unlock(t.Context())
					continue
				}
				if freeze {
					time.Sleep(300 * time.Millisecond)
				}
				err = fence.Set(t.Context(), client, stock(i), lease.Token(), fmt.Sprint(left-1))
				_ = lease.Unlock(t.Context())
				if errors.Is(err, fence.ErrStaleToken) {
					refused.Add(1)
					freeze = false
					continue
				}
				if err != nil {
					t.Error(err)
				}
				sold.Add(1)
				return true
			}
			if empty == segments {
				return false
			}
		}
	}
	var wg sync.WaitGroup
	for p := range 3 {
		l := newLock(t, session(t, srv.Addr()), "app", o)
		for b := range 4 {
			wg.Go(func() {
				for first := true; buy(l, p == 0 && b == 0 && first); first = false {
				}
			})
		}
	}
	wg.Wait()
	require.EqualValues(t, segments*each, sold.Load())
	t.Logf("%d late writes refused", refused.Load())
}
