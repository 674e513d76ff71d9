package reentrant_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

func TestCluster_noCallCrossesSlots(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t, redistest.Options{Cluster: true})
	rng := rand.New(rand.NewPCG(7, 7))
	for _, prefix := range []string{"", "app:"} {
		hf := session(t, srv.Addr(), holdfast.SessionOptions{Prefix: prefix, Receipts: true})
		var leases []*holdfast.Lease
		for i := range 100 {
			name := fmt.Sprintf("n%d-%x", i, rng.Uint64())
			if i%3 == 0 {
				name = fmt.Sprintf("a{%x}b%d", rng.Uint64(), i)
			}
			l := newLock(t, hf, name, holdfast.Options{Fencing: i%2 == 0, Lease: 1500 * time.Millisecond})
			ctx, lease := lock(t, l)
			_, nested, err := l.Lock(ctx)
			require.NoError(t, err)
			require.NoError(t, nested.Unlock(ctx))
			info, err := l.Info(ctx)
			require.NoError(t, err)
			require.Equal(t, "exclusive", info.Mode)
			leases = append(leases, lease)
		}
		time.Sleep(1700 * time.Millisecond) // renewed, in a hundred slots
		for i, lease := range leases {
			require.True(t, lease.Valid(), lease.Name())
			if i%10 == 0 {
				was, err := newLock(t, hf, lease.Name()[len(prefix):]).ForceUnlock(context.Background())
				require.NoError(t, err)
				require.True(t, was)
				require.ErrorIs(t, lease.Unlock(context.Background()), holdfast.ErrLost)
				continue
			}
			require.NoError(t, lease.Unlock(context.Background()))
		}
	}
}

// A session that sends with both families wakes those of either.
func TestCluster_X16_waitersAreWokenByEachFamily(t *testing.T) {
	srv := redistest.Run(t, redistest.Options{Cluster: true})
	for i, c := range []struct {
		sends, hears holdfast.Family
		listeners    string
	}{
		{holdfast.FamilyAuto, holdfast.FamilyAuto, "SHARDNUMSUB"},
		{holdfast.FamilySharded, holdfast.FamilySharded, "SHARDNUMSUB"},
		{holdfast.FamilyPublish, holdfast.FamilyPublish, "NUMSUB"},
		{holdfast.FamilyBoth, holdfast.FamilySharded, "SHARDNUMSUB"},
		{holdfast.FamilyBoth, holdfast.FamilyPublish, "NUMSUB"},
	} {
		name := fmt.Sprint(key(t), ":", i)
		channel := "redisson_lock__channel:{" + name + "}"
		theirs := newLock(t, session(t, srv.Addr(), holdfast.SessionOptions{Family: c.sends}), name)
		mine := newLock(t, session(t, srv.Addr(), holdfast.SessionOptions{Family: c.hears}), name)
		ctx, lease := lock(t, theirs)
		done := make(chan error, 1)
		go func() { done <- mine.Do(within(t, 20*time.Second), func(context.Context) error { return nil }) }()
		redistest.Eventually(t, 10*time.Second, "it listens", func() bool {
			return srv.Do(t, "PUBSUB", c.listeners, channel) == channel+" 1"
		})
		require.NoError(t, lease.Unlock(ctx))
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(4 * time.Second): // a waiter that hears nothing looks after five
			t.Fatal("not woken")
		}
	}
}

// A proxy in front of a cluster, or a client that was told it is a single server,
// is refused a batch over many slots and must renew all the same.
func TestCluster_renewalsThroughASingleClientAreSplit(t *testing.T) {
	t.Parallel()
	srv := redistest.Run(t, redistest.Options{Cluster: true})
	client := srv.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient = true })
	hf := sessionOn(t, client)
	l := newLock(t, hf, key(t), holdfast.Options{Lease: 3 * time.Second})
	var leases []*holdfast.Lease
	for i := range 50 {
		_, lease := lock(t, l.For(fmt.Sprint(i)))
		leases = append(leases, lease)
	}
	time.Sleep(3500 * time.Millisecond) // more than a lease
	for _, lease := range leases {
		require.True(t, lease.Valid(), lease.Name())
		require.NoError(t, lease.Unlock(context.Background()))
	}
}
