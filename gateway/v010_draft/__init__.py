"""AMQP 0-10 as its working draft of July 2007 had it, between 0-9 and the final: a dialect of its own.

The frames and the connection are those of 0-9-1 (:mod:`gateway.classic`); sessions and commands without written ids are
on their way to 0-10; ``message.transfer`` holds the properties as arguments, and the body inline or by reference.

================  ====================================================================================================
``fields``        types of fields that no other version has
``tables``        field tables with one octet of type, as in the final, and no count of entries
``methods``       the methods of the classes that our sessions serve; ``unserved`` those of the others
``constants``     constants and domains
``translate``     message <-> the arguments of message.transfer; ``layout`` and ``splice`` look into them undecoded
``execution``     command ids, completion, responses
``references``    bodies that come in pieces
``attached``      a session, as both ends have it; ``client_channel`` and ``server_channel`` one end each, with
                  the tables ``client_requests`` and ``server_requests``
``connection``    frames and phases, over those of the classic versions
``client``        the connection of a client; ``server`` that of a server
================  ====================================================================================================
"""
