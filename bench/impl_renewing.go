package bench

import (
	"context"
	"time"
)

// refresher is a Hold of a library without a watchdog.
type refresher interface {
	Hold
	refresh(ctx context.Context, lease time.Duration) error
}

// renewing gives such a library the watchdog that its users write: for each lock
// a goroutine with a ticker.
func renewing(open func(Env) (Client, error)) func(Env) (Client, error) {
	return func(e Env) (Client, error) {
		c, err := open(e)
		return renewingClient{c, e.lease()}, err
	}
}

type renewingClient struct {
	Client
	lease time.Duration
}

func (c renewingClient) Locker(name string) Locker {
	return renewingLocker{c.Client.Locker(name), c.lease}
}

type renewingLocker struct {
	Locker
	lease time.Duration
}

func (l renewingLocker) Lock(ctx context.Context) (Hold, error) {
	hold, err := l.Locker.Lock(ctx)
	if err != nil {
		return nil, err
	}
	renewed, stop := context.WithCancel(context.WithoutCancel(ctx))
	h := &renewedHold{hold.(refresher), stop, make(chan struct{})}
	go h.watch(renewed, l.lease)
	return h, nil
}

type renewedHold struct {
	refresher
	stop context.CancelFunc
	done chan struct{}
}

func (h *renewedHold) watch(ctx context.Context, lease time.Duration) {
	defer close(h.done)
	t := time.NewTicker(lease / 3)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			// A lock that was lost shows at its release.
			_ = h.refresh(ctx, lease)
		case <-ctx.Done():
			return
		}
	}
}

func (h *renewedHold) Unlock(ctx context.Context) error {
	h.stop()
	<-h.done
	return h.refresher.Unlock(ctx)
}
