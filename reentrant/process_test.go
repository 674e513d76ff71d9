package reentrant_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/reentrant"
)

// childLock is the lock of a child process.
func childLock(o holdfast.Options, s holdfast.SessionOptions) (rueidis.Client, *holdfast.Session, *reentrant.Lock) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{os.Getenv("ADDR")}, DisableCache: true})
	if err != nil {
		panic(err)
	}
	hf, err := holdfast.New(client, s)
	if err != nil {
		panic(err)
	}
	l, err := reentrant.New(hf, os.Getenv("NAME"), o)
	if err != nil {
		panic(err)
	}
	return client, hf, l
}

// frozenHolder takes the lock, says its token, and as soon as it finds that it
// stood still says what it then knew and what became of its late write.
func frozenHolder() {
	var renewed atomic.Int64
	client, _, l := childLock(holdfast.Options{Lease: 1200 * time.Millisecond, Fencing: true}, holdfast.SessionOptions{
		Observer: holdfast.Observer{Renewed: func(e holdfast.Renewed) { renewed.Add(int64(e.Renewed)) }},
	})
	ctx, lease, err := l.Lock(context.Background())
	if err != nil {
		panic(err)
	}
	if err := fence.Set(ctx, client, os.Getenv("NAME")+"-guarded", lease.Token(), "before"); err != nil {
		panic(err)
	}
	last := time.Now()
	redistest.Say("token %d", lease.Token()) // it may be stopped from here on
	for now := last; now.Sub(last) < time.Second; last, now = now, time.Now() {
		time.Sleep(100 * time.Microsecond) // a jump of the clock is a pause of this process
	}
	valid, before := lease.Valid(), renewed.Load()
	<-ctx.Done()
	write := fence.Set(context.Background(), client, os.Getenv("NAME")+"-guarded", lease.Token(), "late")
	unlock := lease.Unlock(context.Background())
	redistest.Say("resumed valid=%v renewals=%d lost=%v refused=%v unlock=%v", valid, renewed.Load()-before,
		errors.Is(context.Cause(ctx), holdfast.ErrLost), errors.Is(write, fence.ErrStaleToken), errors.Is(unlock, holdfast.ErrLost))
}

func TestProcess_aHolderThatWasStoppedPastItsLeaseKnowsIt(t *testing.T) {
	t.Parallel()
	child := redistest.Child(t, "frozen", "ADDR="+redisAddr, "NAME="+key(t))
	token, err := strconv.ParseUint(child.Line("token ", 20*time.Second), 10, 64)
	require.NoError(t, err)
	child.Stop()

	client := connect(t, redisAddr)
	l := newLock(t, sessionOn(t, client), key(t), holdfast.Options{Fencing: true})
	ctx, lease := lock(t, l)
	require.Greater(t, lease.Token(), token)
	require.NoError(t, fence.Set(ctx, client, key(t)+"-guarded", lease.Token(), "new"))
	before := server.Do(t, "HGETALL", key(t))
	time.Sleep(time.Second) // the pause is longer than what the child takes for one
	child.Continue()
	require.Equal(t, "valid=false renewals=0 lost=true refused=true unlock=true", child.Line("resumed ", 20*time.Second))
	require.Equal(t, "new", server.Do(t, "GET", key(t)+"-guarded"))
	require.Equal(t, before, server.Do(t, "HGETALL", key(t)))
	require.True(t, lease.Valid())
	require.NoError(t, lease.Unlock(ctx))
}

// killedHolder takes the lock and works until it is killed.
func killedHolder() {
	_, _, l := childLock(holdfast.Options{Lease: 1500 * time.Millisecond}, holdfast.SessionOptions{})
	if _, _, err := l.Lock(context.Background()); err != nil {
		panic(err)
	}
	redistest.Say("held")
	<-redistest.Listen()
}

func TestProcess_L12_aKilledHoldersLockIsFreeAtTheEndOfItsLease(t *testing.T) {
	t.Parallel()
	child := redistest.Child(t, "killed", "ADDR="+redisAddr, "NAME="+key(t))
	child.Line("held", 20*time.Second)
	l := newLock(t, session(t, redisAddr), key(t))
	_, _, err := l.TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	time.Sleep(1800 * time.Millisecond) // it is renewed
	_, _, err = l.TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	child.Kill()
	began := time.Now()
	ctx, lease := lock(t, l)
	require.Less(t, time.Since(began), 3500*time.Millisecond, "lease and slack")
	require.NoError(t, lease.Unlock(ctx))
}
