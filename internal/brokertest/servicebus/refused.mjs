// Refused is an answer that is no success: an HTTP status, which $management and the admin interface give, and an AMQP
// condition, which links give.

export class Refused extends Error {
  constructor(status, condition, description) {
    super(description);
    this.status = status;
    this.condition = condition;
  }

  static notFound(path) {
    return new Refused(404, 'amqp:not-found', `The messaging entity '${path}' could not be found.`);
  }

  static disabled(path) {
    return new Refused(403, 'com.microsoft:entity-disabled', `The messaging entity '${path}' is disabled.`);
  }

  static unauthorized(what) {
    return new Refused(401, 'amqp:unauthorized-access', what);
  }

  static lockLost() {
    return new Refused(410, 'com.microsoft:message-lock-lost',
      'The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue.');
  }

  static sessionLockLost() {
    return new Refused(410, 'com.microsoft:session-lock-lost', 'The session lock has expired on the session. Accept a new session.');
  }

  static busy() {
    return new Refused(503, 'com.microsoft:server-busy', 'The request was terminated because the entity is being throttled. Wait and try again.');
  }

  static bad(description) {
    return new Refused(400, 'com.microsoft:argument-error', description);
  }
}
