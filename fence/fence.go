package fence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/scripts"
)

// ErrStaleToken: the resource has seen a newer token, or the token is 0. Nothing
// was written.
var ErrStaleToken = errors.New("fence: stale token")

// Key is the key that keeps the newest token for a resource of that name, in the
// same slot of a cluster.
func Key(resource string) string { return core.Prefixed("holdfast_fence", resource) }

// Set writes value to the string key if token is not older than the newest one
// that the key has seen, in one atomic step and one round trip. The key's TTL is
// removed, as by SET.
//
// ctx bounds the call. Errors: [ErrStaleToken]; the client's. After a lost reply
// the write may have been made; a repeat with the same token is harmless.
func Set(ctx context.Context, client rueidis.Client, key string, token uint64, value string) error {
	_, err := set.Exec(ctx, client, Key(key), token, []string{key}, []string{value})
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

// Exec runs the script under fence, the key that keeps the newest token; see
// [Key]. In a cluster fence and keys must share a slot.
//
// ctx bounds the call. Errors: [ErrStaleToken], and then nothing was written; the
// client's, [rueidis.Nil] included if body returns nothing. The call is not
// repeated by itself: after a lost reply body may have run.
func (s *Script) Exec(ctx context.Context, client rueidis.Client, fence string, token uint64, keys, args []string) (rueidis.RedisMessage, error) {
	if token == 0 {
		return rueidis.RedisMessage{}, fmt.Errorf("%w: 0 is never a token: is the lock taken with Options.Fencing?", ErrStaleToken)
	}
	reply, err := s.script.Exec(ctx, client,
		append([]string{fence}, keys...),
		append([]string{strconv.FormatUint(token, 10)}, args...)).ToMessage()
	if e, ok := rueidis.IsRedisErr(err); ok && strings.HasPrefix(e.Error(), "STALETOKEN") {
		return reply, fmt.Errorf("%w: %s", ErrStaleToken, strings.TrimPrefix(e.Error(), "STALETOKEN "))
	}
	return reply, err
}
