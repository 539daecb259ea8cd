package endpoint_test

import "github.com/holdfast-go/holdfast/recoverability"

// once is no retries at all.
var once = recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None}
