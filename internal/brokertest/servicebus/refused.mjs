// Refused is a refusal: an HTTP status, for $management and the administration, and an AMQP condition, for links.

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

  // throttled returns the answer of a namespace without credits. https://learn.microsoft.com/azure/service-bus-messaging/service-bus-throttling
  static throttled(status = 503) {
    return new Refused(status, 'com.microsoft:server-busy',
      'The request was terminated because the namespace test is being throttled. Error code: 50009. Please wait 10 seconds and try again.');
  }

  // by returns the service's answer with a status.
  static by(status, path, operation) {
    switch (status) {
      case 400: return Refused.bad(operation.endsWith('cancel-scheduled-message')
        ? 'The scheduled message with SequenceNumber = 1 is already being cancelled.' : 'The request has an argument that is invalid.');
      case 401: return Refused.unauthorized(`Unauthorized access. Claim(s) are required to perform this operation on '${path}'.`);
      case 403: return Refused.full(path);
      case 404: return Refused.notFound(path);
      case 410: return Refused.lockLost();
      case 413: return new Refused(413, 'amqp:link:message-size-exceeded', 'The message exceeds the limit currently allowed on the link.');
      case 429: case 503: return Refused.throttled(status);
      default: return new Refused(status, 'amqp:internal-error', 'The service was unable to process the request; please retry the operation.');
    }
  }

  static full(path) {
    return new Refused(403, 'amqp:resource-limit-exceeded', `The entity ${path} has reached its maximum size.`);
  }

  static bad(description) {
    return new Refused(400, 'com.microsoft:argument-error', description);
  }
}
