package fence

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/scripts"
)

// ErrStaleToken: the resource has seen a newer token, or the token is 0. Nothing
// was written. It matches [holdfast.ErrLost] too, since that is what it means.
var ErrStaleToken = fmt.Errorf("fence: stale token: the lock was %w", fault.ErrLost)

// Key is the key that keeps the newest token for a resource of that name, in the
// same slot of a cluster.
func Key(resource string) string { return core.Prefixed("holdfast_fence", resource) }

// Set writes value to the string key if token is not older than the newest one
// that the key has seen, in one atomic step and one round trip. The key's TTL is
// removed, as by SET.
//
// ctx bounds the call. Errors: [ErrStaleToken]; [holdfast.ErrName] for a key that
// could not be a lock's name, since its fence could lie in another slot; the
// client's. After a lost reply the write may
// have been made; a repeat with the same token is harmless.
func Set(ctx context.Context, client rueidis.Client, key string, token uint64, value string) error {
	_, err := set.Exec(ctx, client, key, token, []string{key}, []string{value})
	return err
}

var set = NewScript(`return redis.call('SET', KEYS[1], ARGV[1])`)

// A Script is a script that runs only if a token is not stale. It may be used
// from many goroutines.
type Script struct {
	script *scripts.Script
}

// NewScript returns body with the guard before it, as one script: the comparison
// and whatever body writes are one atomic step. In body, KEYS and ARGV are what
// Exec is given; the guard's own are hidden.
func NewScript(body string) *Script {
	return &Script{script: scripts.New("fence", scripts.FenceGuard+body)}
}

// Exec runs the script for resource, the name under which the newest token is
// kept; see [Key]. In a cluster resource and keys must share a slot.
//
// ctx bounds the call. Errors: [ErrStaleToken], and then nothing was written;
// [holdfast.ErrName] for a resource that could not be a lock's name, since its
// fence could lie in another slot; the client's, [rueidis.Nil] included if body returns nothing. The call is not
// repeated by itself: after a lost reply body may have run.
func (s *Script) Exec(ctx context.Context, client rueidis.Client, resource string, token uint64, keys, args []string) (rueidis.RedisMessage, error) {
	if token == 0 {
		return rueidis.RedisMessage{}, fmt.Errorf("%w: 0 is never a token: the lease is over, or it was taken without Options.Fencing", ErrStaleToken)
	}
	if err := core.CheckName(resource); err != nil {
		return rueidis.RedisMessage{}, fmt.Errorf("fence: %w", err)
	}
	reply, err := s.script.Exec(ctx, client,
		append([]string{Key(resource)}, keys...),
		append([]string{strconv.FormatUint(token, 10)}, args...)).ToMessage()
	if e, ok := rueidis.IsRedisErr(err); ok && strings.HasPrefix(e.Error(), "STALETOKEN") {
		return reply, fmt.Errorf("%w: %s", ErrStaleToken, strings.TrimPrefix(e.Error(), "STALETOKEN "))
	}
	return reply, err
}
