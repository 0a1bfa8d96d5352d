// Behaviour of all pages: current times, switches, copying, dialogs, keys and live updates.

import { startClock } from "./times.js";
import { startKeys } from "./keys.js";
import { startNews } from "./news.js";
import { startControls } from "./controls.js";

startClock();
startControls();
startKeys();
startNews();
