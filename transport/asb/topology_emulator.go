package asb

import "context"

// emulatorDeliveryCount is the highest delivery limit that Microsoft's emulator accepts. It also
// limits the size of a queue or topic, to 100 MB, which is its default.
// https://learn.microsoft.com/azure/service-bus-messaging/overview-emulator
const emulatorDeliveryCount = 10

// lower changes settings to those that an emulator accepts: it lowers the delivery limit, and
// leaves the size to the emulator. Either pointer may be nil.
func (c *conn) lower(ctx context.Context, deliveries, size **int32) {
	if deliveries != nil && **deliveries > emulatorDeliveryCount {
		*deliveries = new(int32(emulatorDeliveryCount))
		c.warnEmulator(ctx)
	}
	if size != nil {
		*size = nil
	}
}

// warnEmulator logs the limits of an emulator once.
func (c *conn) warnEmulator(ctx context.Context) {
	c.limited.Do(func() {
		c.log.WarnContext(ctx, "the emulator limits deliveries: a message that a process crashes with, or whose lock expires, so often becomes a dead letter, perhaps before its retries are over",
			"max delivery count", emulatorDeliveryCount, "advice", "use the emulator for development only; it also deletes messages after 1 h, and accepts 50 queues and topics, 100 MB each, and 10 connections")
	})
}

// emulated reports whether a delivery limit is the emulator's highest, which Install sets there.
func (c *conn) emulated(deliveries int32) bool {
	return c.ns.insecure && deliveries == emulatorDeliveryCount
}
