package rwlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

func TestCluster_noCallCrossesSlots(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t, redistest.Options{Cluster: true})
	rng := rand.New(rand.NewPCG(7, 7))
	for _, prefix := range []string{"", "app:"} {
		hf := session(t, srv.Addr(), holdfast.SessionOptions{Prefix: prefix})
		other := session(t, srv.Addr(), holdfast.SessionOptions{Prefix: prefix})
		var leases []*holdfast.Lease
		for i := range 60 {
			name := fmt.Sprintf("n%d-%x", i, rng.Uint64())
			if i%3 == 0 {
				name = fmt.Sprintf("a{%x}b%d", rng.Uint64(), i)
			}
			l := newLock(t, hf, name, holdfast.Options{Fencing: i%2 == 0, Lease: 1500 * time.Millisecond})
			ctx, w := lock(t, l.Writer())
			_, inner, err := l.Writer().Lock(ctx)
			require.NoError(t, err)
			unlock(t, inner)
			_, own, err := l.Reader().Lock(ctx)
			require.NoError(t, err)
			unlock(t, own)
			_, r, err := l.Writer().Downgrade(ctx, w)
			require.NoError(t, err)
			info, err := l.Reader().Info(context.Background())
			require.NoError(t, err)
			require.Equal(t, "read", info.Mode)
			taken(t, newLock(t, other, name).Writer())
			gone, cancel := context.WithCancel(context.Background())
			gave := make(chan error, 1)
			go func() { _, _, err := newLock(t, other, name).Writer().Lock(gone); gave <- err }() // announced, and withdrawn
			redistest.Eventually(t, 10*time.Second, "it has its answer, and listens", func() bool {
				return slices.Contains(srv.Channels(t), core.Prefixed("redisson_rwlock", prefix+name))
			})
			cancel()
			require.ErrorIs(t, <-gave, holdfast.ErrNotAcquired)
			leases = append(leases, r)
		}
		time.Sleep(1700 * time.Millisecond) // renewed, in sixty slots
		for i, lease := range leases {
			require.True(t, lease.Valid(), lease.Name())
			if i%10 == 0 {
				was, err := newLock(t, hf, lease.Name()[len(prefix):]).Reader().ForceUnlock(context.Background())
				require.NoError(t, err)
				require.True(t, was)
				require.ErrorIs(t, lease.Unlock(context.Background()), holdfast.ErrLost)
				continue
			}
			unlock(t, lease)
			free(t, newLock(t, other, lease.Name()[len(prefix):]).Writer())
		}
	}
}

func TestCluster_X16_allWhoWaitAreWokenByEachFamily(t *testing.T) {
	srv := redistest.Run(t, redistest.Options{Cluster: true})
	for f, family := range []holdfast.Family{holdfast.FamilyAuto, holdfast.FamilyPublish} {
		hf := func() *holdfast.Session {
			return session(t, srv.Addr(), holdfast.SessionOptions{Family: family})
		}
		theirs, mine := newLock(t, hf(), key(t)), newLock(t, hf(), key(t))
		listeners := []string{"SHARDNUMSUB", "NUMSUB"}[f]
		// A writer looks once a second even if it hears nothing, so what counts is the
		// shortest wait of a few: who hears is in at once.
		best := [2]time.Duration{time.Hour, time.Hour}
		for i := range 6 {
			id := fmt.Sprint(f, "-", i)
			take, side := theirs.For(id).Writer().Lock, holdfast.Locker(mine.For(id).Reader())
			if i%2 == 1 {
				take, side = theirs.For(id).Reader().Lock, mine.For(id).Writer()
			}
			ctx, lease, err := take(context.Background())
			require.NoError(t, err)
			done := make(chan error, 1)
			go func() { done <- side.Do(within(t, 20*time.Second), func(context.Context) error { return nil }) }()
			channel := "redisson_rwlock:{" + key(t) + ":" + id + "}"
			redistest.Eventually(t, 10*time.Second, "it listens", func() bool {
				return srv.Do(t, "PUBSUB", listeners, channel) == channel+" 1"
			})
			time.Sleep(50 * time.Millisecond) // it looks again
			require.NoError(t, lease.Unlock(ctx))
			began := time.Now()
			require.NoError(t, <-done)
			best[i%2] = min(best[i%2], time.Since(began))
		}
		require.Less(t, max(best[0], best[1]), 700*time.Millisecond, "not woken: readers %v, writers %v", best[0], best[1])
	}
}

// moving has the slot of a name on its way to another node, with no key moved yet.
func moving(t *testing.T, c *redistest.Cluster, name string) *redistest.Move {
	t.Helper()
	slot := c.Slot(name)
	from := c.Owner(slot)
	for _, tag := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		if to := c.Primary(tag); to != from {
			return c.BeginMove(t, slot, to)
		}
	}
	t.Fatal("one node has all slots")
	return nil
}

// While a slot moves its keys lie on two nodes. To a script that has not declared it the
// key of a reader looks absent, and the reader dead.
func TestCluster_noWriterBesideALiveReaderWhileASlotMoves(t *testing.T) {
	c := redistest.RunCluster(t)
	name := key(t)
	o := holdfast.Options{Lease: 2 * time.Second}
	one, two := newLock(t, sessionOn(t, c.Client(t)), name, o), newLock(t, sessionOn(t, c.Client(t)), name, o)
	writer := newLock(t, sessionOn(t, c.Client(t)), name, o)
	ctx1, r1 := lock(t, one.Reader())
	_, r2 := lock(t, two.Reader())
	refused := func(stage string) {
		t.Helper()
		for range 5 {
			_, w, err := writer.Writer().TryLock(context.Background())
			require.Error(t, err, stage)
			require.Nil(t, w, stage)
		}
		require.True(t, r1.Valid(), stage)
	}
	move := moving(t, c, name)
	hold := func(l *holdfast.Lease) string { return "{" + name + "}:" + l.Owner() + ":rwlock_timeout:1" }
	refused("no key has moved")
	time.Sleep(time.Second) // a renewal or two
	refused("no key has moved")
	move.MoveKeys(hold(r1))
	refused("the key of one hold has moved")
	time.Sleep(2100 * time.Millisecond) // more than a lease
	refused("the key of one hold has moved, and is renewed there")
	require.True(t, r2.Valid())
	unlock(t, r2) // while the lock is on one node and nothing on the other
	time.Sleep(2100 * time.Millisecond)
	refused("one reader has left, and the other is renewed on two nodes")
	_, nested, err := one.Reader().Lock(ctx1)
	require.NoError(t, err)
	unlock(t, nested)
	move.MoveKeys(name)
	refused("the lock has moved")
	time.Sleep(2100 * time.Millisecond)
	refused("the lock has moved, and is renewed there")
	move.Finish()
	time.Sleep(time.Second) // a renewal
	refused("the slot has moved")
	unlock(t, r1)
	_, w, err := writer.Writer().Lock(within(t, 20*time.Second))
	require.NoError(t, err)
	unlock(t, w)
	require.Empty(t, c.Keys(t, "*rwlock_timeout*"))
}

// A writer is renewed, gives back, and becomes a reader, whichever of its keys lie where.
func TestCluster_aWriterWhileASlotMoves(t *testing.T) {
	c := redistest.RunCluster(t)
	o := holdfast.Options{Lease: 2 * time.Second, Fencing: true}
	hf, other := sessionOn(t, c.Client(t)), sessionOn(t, c.Client(t))
	for _, how := range []string{"unlock", "downgrade", "downgrade and move"} {
		t.Run(how, func(t *testing.T) {
			name := key(t)
			l := newLock(t, hf, name, o)
			ctx, w := lock(t, l.Writer())
			move := moving(t, c, name)
			if how != "unlock" {
				move.MoveKeys(name) // its token counter stays behind
			}
			time.Sleep(2100 * time.Millisecond)
			require.True(t, w.Valid(), "renewed")
			_, inner, err := l.Writer().Lock(ctx)
			require.NoError(t, err)
			unlock(t, inner)
			_, _, err = newLock(t, other, name).Writer().TryLock(context.Background())
			require.Error(t, err)
			if how == "unlock" {
				unlock(t, w)
			} else {
				reading, r, err := l.Writer().Downgrade(ctx, w)
				require.NoError(t, err)
				if how == "downgrade and move" {
					move.Finish()
				}
				time.Sleep(2100 * time.Millisecond)
				require.NoError(t, reading.Err(), "renewed")
				info, err := newLock(t, other, name).Writer().Info(context.Background())
				require.NoError(t, err)
				require.Equal(t, "read", info.Mode)
				_, _, err = newLock(t, other, name).Writer().TryLock(context.Background())
				require.Error(t, err)
				unlock(t, r)
			}
			if how != "downgrade and move" {
				move.Finish()
			}
			_, w, err = newLock(t, other, name).Writer().Lock(within(t, 20*time.Second))
			require.NoError(t, err)
			unlock(t, w)
		})
	}
}

// A reader that asks while the slot moves gets in when it has moved.
func TestCluster_anAcquireWaitsForTheSlot(t *testing.T) {
	c := redistest.RunCluster(t)
	name := key(t)
	l := newLock(t, sessionOn(t, c.Client(t)), name)
	_, r := lock(t, l.Reader())
	move := moving(t, c, name)
	got := make(chan error, 1)
	go func() {
		got <- newLock(t, sessionOn(t, c.Client(t)), name).Reader().Do(within(t, 20*time.Second), func(context.Context) error { return nil })
	}()
	time.Sleep(300 * time.Millisecond)
	require.Empty(t, got)
	move.Finish()
	require.NoError(t, <-got)
	unlock(t, r)
}
