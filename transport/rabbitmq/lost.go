package rabbitmq

import (
	"encoding/json"
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

// LostQueue is the queue of delayed messages whose queue was gone when they were due.
const LostQueue = delayLost

// DelayedTo is the queue that a message of [LostQueue] was to go to; "" when it has come there in another way.
func DelayedTo(m *transport.Message) string {
	var deaths []struct {
		Keys []string `json:"routing-keys"`
	}
	if json.Unmarshal([]byte(m.Native["x-death"]), &deaths) != nil || len(deaths) == 0 || len(deaths[0].Keys) == 0 {
		return ""
	}
	destination := deaths[0].Keys[0]
	destination = strings.TrimPrefix(destination[min(delays.Overhead(), len(destination)):], relayedDestination)
	queue, ok := strings.CutPrefix(destination, queueDestination)
	if !ok {
		return ""
	}
	return queue
}
