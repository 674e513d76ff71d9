package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/reentrant"
)

const (
	// lease is how long both locks outlive a holder that is gone. It is short so
	// that the demo is: with 30 s the same things happen to whoever stands still for
	// a minute.
	lease = 200 * time.Millisecond
	// poll is how often the naive lock is tried. Tutorials sleep longer, which makes
	// it slower and changes nothing else.
	poll = 10 * time.Millisecond
)

// A guard stands between the buyers and the stock.
type guard interface {
	// buy calls purchase when the guard lets it. purchase stores what it did with
	// the write that it is given. Its context ends when the guard knows that it no
	// longer guards.
	buy(ctx context.Context, purchase func(ctx context.Context, write write) error) error
	// close gives back what the guard holds.
	close()
}

// A write stores a new stock and the row of the order in one atomic step.
type write func(ctx context.Context, keys, args []string) error

// body is the script of every write. That it is a script in all modes keeps a
// killed process from taking a unit without an order, so that what goes wrong is
// the guard's doing and nothing else.
const body = `
redis.call('SET', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return 1`

// A mode is one way to guard the sale.
type mode struct {
	name string
	// limit ends a sale that sells too slowly, or never sells out since units come
	// back.
	limit time.Duration
	// waits tells that there is a lock to wait for, sound that each unit is to be
	// sold once.
	waits, sound bool
	open         func(client rueidis.Client, keys keys) (guard, error)
}

var modes = []mode{
	{name: "no lock", limit: 5 * time.Second, open: openNothing},
	{name: "naive lock", limit: 12 * time.Second, waits: true, open: openNaive},
	{name: "Holdfast", limit: 30 * time.Second, waits: true, sound: true, open: openHoldfast},
}

// plain is a write that nothing guards.
func plain(client rueidis.Client) write {
	script := rueidis.NewLuaScript(body)
	return func(ctx context.Context, keys, args []string) error {
		return script.Exec(ctx, client, keys, args).Error()
	}
}

// nothing lets everyone in at once.
type nothing struct{ write write }

func openNothing(client rueidis.Client, _ keys) (guard, error) {
	return nothing{plain(client)}, nil
}

func (n nothing) buy(ctx context.Context, purchase func(context.Context, write) error) error {
	return purchase(ctx, n.write)
}

func (nothing) close() {}

// naive is the lock of many tutorials: taken with SET NX PX, waited for by asking
// again, never renewed, and given back with DEL, whoever has it by then.
type naive struct {
	client rueidis.Client
	key    string
	write  write
}

func openNaive(client rueidis.Client, keys keys) (guard, error) {
	return naive{client, keys.Lock, plain(client)}, nil
}

func (n naive) buy(ctx context.Context, purchase func(context.Context, write) error) error {
	for {
		err := n.client.Do(ctx, n.client.B().Set().Key(n.key).Value("locked").Nx().Px(lease).Build()).Error()
		if err == nil {
			break
		}
		if !rueidis.IsRedisNil(err) {
			return err
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() {
		n.client.Do(context.WithoutCancel(ctx), n.client.B().Del().Key(n.key).Build())
	}()
	return purchase(ctx, n.write)
}

func (naive) close() {}

// fenced is Holdfast: a lock that is renewed while the purchase lasts and whose
// context ends with it, and a write that Redis refuses if it comes too late.
type fenced struct {
	client  rueidis.Client
	session *holdfast.Session
	lock    *reentrant.Lock
	script  *fence.Script
	fence   string
}

func openHoldfast(client rueidis.Client, keys keys) (guard, error) {
	session, err := holdfast.New(client, holdfast.SessionOptions{
		// The loss of the suspended process is part of the show, and counted.
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	lock, err := reentrant.New(session, keys.Lock, holdfast.Options{
		Lease:          lease,
		Fencing:        true,
		TokenRetention: 10 * time.Minute, // nobody needs the token of a sale that is over
	})
	if err != nil {
		return nil, err
	}
	return &fenced{client, session, lock, fence.NewScript(body), keys.Stock}, nil
}

func (f *fenced) buy(ctx context.Context, purchase func(context.Context, write) error) error {
	held, lease, err := f.lock.Lock(ctx)
	if err != nil {
		return err
	}
	// Whether the lease was lost in the end does not matter: the fence has decided
	// about the write by then.
	defer lease.Unlock(ctx)
	return purchase(held, func(ctx context.Context, keys, args []string) error {
		_, err := f.script.Exec(ctx, f.client, f.fence, lease.Token(), keys, args)
		return err
	})
}

func (f *fenced) close() { _ = f.session.Close(context.Background()) }
