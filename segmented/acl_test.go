package segmented_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/segmented"
)

// What docs/ARCHITECTURE.md says a user of stocks has to be allowed.
var stockRules = strings.Fields(`~holdfast_stock* &holdfast_stock*
	+evalsha +eval +subscribe +unsubscribe +publish +ping +hello +auth
	+hget +hmget +hset +hdel +hexists +hgetall +hlen +hscan +hincrby +zadd +zrem +zcard +zcount +zrange +zrangebyscore +time`)

func TestStock_anAclUserNeedsNoMoreThanTheDocumentedLine(t *testing.T) {
	calls := func(t *testing.T, client rueidis.Client, buckets int) {
		hf := sessionOn(t, client)
		s := openStock(t, hf, fmt.Sprint("shoe", buckets), segmented.StockOptions{Limit: 30, Buckets: buckets})
		other := openStock(t, hf, fmt.Sprint("tie", buckets), segmented.StockOptions{Buckets: buckets})
		require.NoError(t, s.Init(t.Context(), 40))
		require.NoError(t, other.Init(t.Context(), 40))
		everyCall(t, s, other)
	}
	t.Run("on one server", func(t *testing.T) {
		srv := redistest.Run(t)
		client := srv.Client(t, srv.User(t, "stock", stockRules...), func(o *rueidis.ClientOption) { o.ForceSingleClient = true })
		for _, buckets := range []int{1, 8} {
			calls(t, client, buckets)
		}
		require.NotContains(t, srv.Do(t, "ACL", "LOG"), "context lua")
	})
	t.Run("in a cluster", func(t *testing.T) {
		c := redistest.RunCluster(t, redistest.ClusterOptions{})
		more := strings.Fields("+ssubscribe +sunsubscribe +spublish +pubsub|shardnumsub +cluster|slots +cluster|shards")
		login := c.User(t, "stock", append(more, stockRules...)...)
		calls(t, c.Client(t, login), 8)
		for _, srv := range c.Servers() {
			require.NotContains(t, srv.Do(t, "ACL", "LOG"), "context lua")
		}
	})
}
