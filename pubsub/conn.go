package pubsub

import (
	"context"
	"time"

	"github.com/redis/rueidis"
)

const (
	// commandTimeout bounds each pipeline of commands. A connection on which it ran
	// out is given up.
	commandTimeout = 3 * time.Second
	// farewellTimeout bounds the last command of a hub that is being closed.
	farewellTimeout = 500 * time.Millisecond
)

// conn is a connection for subscriptions.
//
// It is always closed, never handed back to the client's pool. To hand it back
// makes the client unsubscribe it without regard to what busy explains; and with
// RESP2, where the subscriptions are on a second connection behind it, leaves
// them there, or a dead second connection to whom gets it next.
type conn struct {
	hub      *Hub
	client   rueidis.DedicatedClient
	lost     <-chan error // says why, and is closed then
	complete chan struct{}
	node     string    // see link.pick
	checked  time.Time // when node was last found to be current

	awaiting int // confirmations to come, guarded by Hub.mu
}

// dedicate makes a connection. It may take as long as the client lets dialing
// take, and cannot be interrupted.
func dedicate(client rueidis.Client, l *link) (*conn, error) {
	c := &conn{hub: l.hub, complete: make(chan struct{}, 1), checked: time.Now()}
	c.client, _ = client.Dedicate()
	c.lost = c.client.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage:      func(m rueidis.PubSubMessage) { l.onMessage(c, m) },
		OnSubscription: func(s rueidis.PubSubSubscription) { l.onSubscription(c, s) },
	})
	// If dialing failed this is where it shows. To go on would be worse than in
	// vain: with RESP2 the next command dials again, and gets a second connection
	// that has no hooks.
	select {
	case err := <-c.lost:
		c.client.Close()
		return nil, gone(err)
	default:
		return c, nil
	}
}

// do runs commands, which must all be ones to subscribe and the like, or none.
// With an error that is not an answer of the server the connection is no longer
// usable.
func (c *conn) do(ctx context.Context, cmds ...rueidis.Completed) ([]rueidis.RedisResult, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	done := make(chan []rueidis.RedisResult, 1)
	// With RESP2 the client does not notice that the second connection is gone, and
	// repeats the command until ctx ends. Hence this goroutine; it ends with ctx.
	c.hub.wg.Go(func() { done <- c.client.DoMulti(ctx, cmds...) })
	select {
	case results := <-done:
		for _, r := range results {
			if err := r.NonRedisError(); err != nil {
				return nil, err
			}
		}
		return results, nil
	case err := <-c.lost:
		return nil, gone(err)
	}
}

// busy reports whether the server refuses commands because a script runs for too
// long. UNSUBSCRIBE must not be sent then: the client sends a PING behind it to
// learn when it was executed, takes the refusal of the one for the reply to the
// other, and panics at the surplus reply, in a goroutine of its own, so that the
// whole process ends. What remains is a script that begins to hang between this
// and the UNSUBSCRIBE.
func (c *conn) busy(ctx context.Context) (bool, error) {
	results, err := c.do(ctx, c.client.B().Ping().Build())
	if err != nil {
		return false, err
	}
	err = results[0].Error()
	return err != nil && hasPrefix(err, "BUSY"), nil
}

// farewell unsubscribes everything. To close the connection would be enough, but
// the server may notice that only after the hub is closed.
func (c *conn) farewell(family Family) {
	ctx, cancel := context.WithTimeout(context.Background(), farewellTimeout)
	defer cancel()
	if busy, err := c.busy(ctx); busy || err != nil {
		return
	}
	unsubscribe := c.client.B().Unsubscribe().Build()
	if family == Sharded {
		unsubscribe = c.client.B().Sunsubscribe().Build()
	}
	_, _ = c.do(ctx, unsubscribe)
}
