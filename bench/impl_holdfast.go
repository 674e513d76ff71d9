package bench

import (
	"context"
	"errors"
	"log/slog"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/reentrant"
	"github.com/holdfast-go/holdfast/rwlock"
	"github.com/holdfast-go/holdfast/segmented"
)

var stockOptions = segmented.StockOptions{}

type holdfastConfig struct {
	fenced, noHandoff, cancellable bool
}

type holdfastClient struct {
	redis   rueidis.Client
	session *holdfast.Session
	lock    *reentrant.Lock
	options holdfast.Options
	config  holdfastConfig
}

func openHoldfast(config holdfastConfig) func(Env) (Client, error) {
	return func(e Env) (Client, error) {
		client, err := rueidis.NewClient(e.rueidis())
		if err != nil {
			return nil, err
		}
		session, err := holdfast.New(client, holdfast.SessionOptions{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			client.Close()
			return nil, err
		}
		o := holdfast.Options{Lease: e.Lease, Fencing: config.fenced}
		if config.noHandoff {
			o.Handoff = -1
		}
		lock, err := reentrant.New(session, "bench", o)
		if err != nil {
			client.Close()
			return nil, err
		}
		return &holdfastClient{client, session, lock, o, config}, nil
	}
}

func (c *holdfastClient) Locker(name string) Locker {
	l := holdfastLocker{c.lock.For(name)}
	if c.config.cancellable {
		return cancellable{l}
	}
	return l
}

func (c *holdfastClient) Reader(name string) (Locker, error) {
	lock, err := rwlock.New(c.session, name, rwlock.Options{Options: c.options})
	if err != nil {
		return nil, err
	}
	return holdfastLocker{lock.Reader()}, nil
}

func (c *holdfastClient) Stock(ctx context.Context, name string, units int64) (Goods, error) {
	stock, err := segmented.OpenStock(c.session, name, stockOptions)
	if err != nil {
		return nil, err
	}
	return holdfastStock{stock}, stock.Init(ctx, units)
}

func (c *holdfastClient) Close() {
	_ = c.session.Close(context.Background())
	c.redis.Close()
}

type holdfastLocker struct{ lock holdfast.Locker }

func (l holdfastLocker) Lock(ctx context.Context) (Hold, error) {
	_, lease, err := l.lock.Lock(ctx)
	if err != nil {
		return nil, err
	}
	return lease, nil
}

// holdfastStock is its own Buyer: a process has one.
type holdfastStock struct{ stock *segmented.Stock }

func (s holdfastStock) Buyer() Buyer { return s }

func (s holdfastStock) Buy(ctx context.Context, order string) error {
	_, err := s.stock.Reserve(ctx, segmented.Order{ID: order, Qty: 1})
	if errors.Is(err, segmented.ErrSoldOut) {
		return ErrSoldOut
	}
	return err
}

func (s holdfastStock) Left(ctx context.Context) (int64, error) {
	v, err := s.stock.View(ctx)
	return v.Free, err
}

// cancellable gives each Lock a context of its own that can be cancelled.
type cancellable struct{ Locker }

func (l cancellable) Lock(ctx context.Context) (Hold, error) {
	ctx, cancel := context.WithCancel(ctx)
	hold, err := l.Locker.Lock(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	return &cancelling{hold, cancel}, nil
}

// cancelling ends the context of its Lock after Unlock.
type cancelling struct {
	Hold
	cancel context.CancelFunc
}

func (h *cancelling) Unlock(ctx context.Context) error {
	defer h.cancel()
	return h.Hold.Unlock(ctx)
}
