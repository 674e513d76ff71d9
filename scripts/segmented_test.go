package scripts_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/scripts"
)

func TestSegmentedCount(t *testing.T) {
	table{script: scripts.SegmentedCount, keys: "lock", rows: []row{
		{"the first number is recorded, without a TTL", []step{
			{args: "64", reply: "64", lock: "'64", ttl: -1},
		}},
		{"another number learns which one is recorded and changes nothing", []step{
			{args: "100", reply: "100", lock: "'100", ttl: -1},
			{args: "128", reply: "100", lock: "'100", ttl: -1},
			{args: "100", reply: "100", lock: "'100", ttl: -1},
		}},
		{"other data is left alone", []step{
			{do: "RPUSH lock a", args: "64", reply: "!WRONGTYPE", lock: "list", ttl: -1},
		}},
	}}.run(t)
}
